// SPDX-License-Identifier: Apache-2.0
//! Processes a sequence in several threads, and returns the results in order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use parking_lot::{Condvar, Mutex};
use reverb_base::{Error, Result};

/// Number of results per thread that may wait for an earlier result.
const AHEAD: usize = 4;

/// No further input is made while unfinished ones have this many bytes together: one may have two
/// GiB.
const AHEAD_BYTES: usize = 64 << 20;

/// The producer of inputs, and the progress of all threads.
struct Source<P, B> {
    produce: P,
    bytes_of: B,
    next: usize,
    consumed: usize,
    /// Sizes of the inputs whose results were not consumed, and their sum.
    sizes: VecDeque<usize>,
    bytes: usize,
    is_over: bool,
}

struct Shared<P, B> {
    source: Mutex<Source<P, B>>,
    advanced: Condvar,
    window: usize,
}

impl<P, B> Shared<P, B> {
    /// The next input with its number; `None` at the end of the inputs or after `end`.
    fn pull<I>(&self) -> Result<Option<(usize, I)>>
    where
        P: FnMut() -> Result<Option<I>>,
        B: Fn(&I) -> usize,
    {
        let mut source = self.source.lock();
        while !source.is_over
            && (source.next - source.consumed >= self.window || source.bytes >= AHEAD_BYTES)
        {
            self.advanced.wait(&mut source);
        }
        if source.is_over {
            return Ok(None);
        }
        let input = (source.produce)();
        if let Ok(Some(input)) = &input {
            let bytes = (source.bytes_of)(input);
            source.sizes.push_back(bytes);
            source.bytes += bytes;
        } else {
            source.is_over = true;
        }
        let number = source.next;
        source.next += 1;
        input.map(|input| input.map(|input| (number, input)))
    }

    /// Records that all results before `next` were consumed.
    fn advance(&self, next: usize) {
        let mut source = self.source.lock();
        while source.consumed < next {
            source.consumed += 1;
            source.bytes -= source.sizes.pop_front().unwrap_or(0);
        }
        drop(source);
        self.advanced.notify_all();
    }

    fn end(&self) {
        self.source.lock().is_over = true;
        self.advanced.notify_all();
    }
}

/// Ends the work of all threads if one panics. The scope then propagates the panic.
struct EndOnPanic<'a, P, B>(&'a Shared<P, B>);

impl<P, B> Drop for EndOnPanic<'_, P, B> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end();
        }
    }
}

/// Applies `work` to all inputs of `produce` in `threads` threads, and passes the results in order
/// to `consume` in the calling thread. `bytes_of` returns the size of an input, and `prepare` makes
/// the state of each thread. If one thread is enough, it is the calling one.
///
/// # Errors
///
/// The first error of any of them, in the order of the sequence; `Cancelled` soon after `cancel`
/// was set.
pub(crate) fn in_order<I: Send, W, O: Send>(
    threads: usize,
    cancel: &AtomicBool,
    mut produce: impl FnMut() -> Result<Option<I>> + Send,
    bytes_of: impl Fn(&I) -> usize + Send,
    prepare: impl Fn() -> W + Sync,
    work: impl Fn(&mut W, I) -> Result<O> + Sync,
    mut consume: impl FnMut(O) -> Result<()>,
) -> Result<()> {
    if threads <= 1 {
        let mut state = prepare();
        while let Some(input) = produce()? {
            consume(work(&mut state, input)?)?;
            check(cancel)?;
        }
        return Ok(());
    }
    let sizes = VecDeque::new();
    let source =
        Source { produce, bytes_of, next: 0, consumed: 0, sizes, bytes: 0, is_over: false };
    let window = AHEAD * threads;
    let shared = Shared { source: Mutex::new(source), advanced: Condvar::new(), window };
    let (sender, results) = mpsc::sync_channel::<(usize, Result<O>)>(window);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let sender = sender.clone();
            let shared = &shared;
            let prepare = &prepare;
            let work = &work;
            scope.spawn(move || {
                let _end = EndOnPanic(shared);
                let mut state = prepare();
                loop {
                    let result = match shared.pull() {
                        Ok(Some((number, input))) => (number, work(&mut state, input)),
                        Ok(None) => break,
                        Err(error) => (usize::MAX, Err(error)),
                    };
                    if sender.send(result).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut early = BTreeMap::new();
        let mut next = 0;
        let mut outcome = Ok(());
        for (number, result) in results {
            early.insert(number, result);
            while outcome.is_ok()
                && let Some(result) = early.remove(&next)
            {
                outcome = result.and_then(&mut consume).and_then(|()| check(cancel));
                next += 1;
            }
            if outcome.is_err() {
                shared.end();
            } else {
                shared.advance(next);
            }
        }
        // An error of the source comes after all its inputs.
        outcome.and_then(|()| early.remove(&usize::MAX).map_or(Ok(()), |error| error.map(|_| ())))
    })
}

pub(crate) fn check(cancel: &AtomicBool) -> Result<()> {
    if cancel.load(Ordering::Relaxed) {
        return Err(Error::cancelled("The checkpoint was aborted: its server is stopping."));
    }
    Ok(())
}

/// Lowers the priority of this thread permanently, below that of the threads that answer callers.
pub(crate) fn lower_priority() {
    // On other systems the same calls affect the whole process.
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{getpriority_process, setpriority_process};
        let lowered = getpriority_process(None)
            .and_then(|nice| setpriority_process(None, (nice + NICENESS).min(MAX_NICENESS)));
        if let Err(error) = lowered {
            tracing::debug!("the priority of a thread cannot be lowered: {error}");
        }
    }
}

/// Increase of the niceness. The normal one is 0, the highest 19.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// The highest niceness, which is the lowest priority.
#[cfg(target_os = "linux")]
const MAX_NICENESS: i32 = 19;

/// Number of threads for this many inputs.
pub(crate) fn num_threads(inputs: usize) -> usize {
    /// More threads would only wait for the one that writes or inflates.
    const MAX: usize = 8;
    if inputs <= 1 {
        return 1;
    }
    std::thread::available_parallelism().map_or(1, usize::from).min(inputs).min(MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    fn run(
        threads: usize,
        fail_at: Option<usize>,
        end_at: Option<usize>,
        cancel_at: Option<usize>,
    ) -> (Vec<usize>, Result<()>) {
        let mut given = 0..200;
        let mut seen = Vec::new();
        let cancel = AtomicBool::new(false);
        let outcome = in_order(
            threads,
            &cancel,
            || match given.next() {
                Some(i) if Some(i) == end_at => Err(Error::internal("source")),
                next => Ok(next),
            },
            |_| 0,
            || 0,
            |done, i| {
                *done += 1;
                if i % 7 == 0 {
                    std::thread::yield_now();
                }
                if Some(i) == fail_at { Err(Error::internal(format!("{i}"))) } else { Ok(i) }
            },
            |i| {
                if Some(i) == cancel_at {
                    cancel.store(true, Ordering::Relaxed);
                }
                seen.push(i);
                Ok(())
            },
        );
        (seen, outcome)
    }

    #[test]
    fn results_come_in_order() {
        for threads in [1, 3] {
            assert_eq!(run(threads, None, None, None), ((0..200).collect(), Ok(())));
        }
    }

    #[test]
    fn one_input_needs_no_thread() {
        let caller = std::thread::current().id();
        let mut inputs = 0..1;
        let outcome = in_order(
            num_threads(inputs.len()),
            &AtomicBool::new(false),
            || Ok(inputs.next()),
            |_| 0,
            || (),
            |(), _| Ok(std::thread::current().id()),
            |worker| {
                assert_eq!(worker, caller);
                Ok(())
            },
        );
        assert_eq!((outcome, inputs.len()), (Ok(()), 0));
    }

    #[test]
    fn large_inputs_do_not_run_ahead_of_the_results() {
        let alive = AtomicUsize::new(0);
        let mut numbers = 0..20;
        let outcome = in_order(
            4,
            &AtomicBool::new(false),
            || {
                assert_eq!(alive.fetch_add(1, Ordering::SeqCst), 0);
                Ok(numbers.next())
            },
            |_| AHEAD_BYTES,
            || (),
            |(), i| {
                std::thread::yield_now();
                Ok(i)
            },
            |_| {
                alive.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            },
        );
        assert_eq!(outcome, Ok(()));
    }

    #[test]
    fn everything_before_an_error_is_consumed_and_nothing_after_it() {
        for threads in [1, 3] {
            let (seen, outcome) = run(threads, Some(40), None, None);
            assert_eq!((seen, outcome.unwrap_err().message()), ((0..40).collect(), "40"));
            let (seen, outcome) = run(threads, None, Some(50), None);
            assert_eq!((seen, outcome.unwrap_err().message()), ((0..50).collect(), "source"));
            let (seen, outcome) = run(threads, None, None, Some(20));
            assert_eq!(seen.len(), 21);
            assert!(outcome.unwrap_err().message().contains("aborted"));
        }
    }
}
