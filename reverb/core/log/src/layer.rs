// SPDX-License-Identifier: Apache-2.0
//! Makes lines of `tracing` events, with the fields of their spans.

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::{LookupSpan, Scope};

use crate::filter::is_ours;
use crate::line::{Fields, Line};

/// Passes a line to `take` for every event that the filter accepts.
#[derive(Debug)]
pub(crate) struct LineLayer<F>(pub(crate) F);

impl<S, F> tracing_subscriber::Layer<S> for LineLayer<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    F: Fn(Line) + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        span.extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(fields) = span.extensions_mut().get_mut::<Fields>() {
            values.record(fields);
        }
    }

    /// A span of h2 has no parent. It follows the span in which it was created.
    fn on_follows_from(&self, id: &Id, follows: &Id, context: Context<'_, S>) {
        let (Some(span), Some(followed)) = (context.span(id), context.span(follows)) else {
            return;
        };
        if span.id() == followed.id() {
            return;
        }
        let known: Vec<_> = followed.extensions().get::<Fields>().into_iter().cloned().collect();
        if let Some(fields) = span.extensions_mut().get_mut::<Fields>() {
            for (name, value) in known.into_iter().flat_map(|fields| fields.values) {
                fields.values.retain(|(other, _)| *other != name);
                fields.values.push((name, value));
            }
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let metadata = event.metadata();
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut line = Line::new(*metadata.level(), metadata.target(), fields.message);
        for span in context.event_scope(event).into_iter().flat_map(Scope::from_root) {
            if let Some(fields) = span.extensions().get::<Fields>() {
                let is_ours = is_ours(span.metadata().target());
                for (name, value) in &fields.values {
                    // h2 also has a field `peer`, with another meaning; ours has priority.
                    if is_ours || !line.has(name) {
                        line.set(*name, value.clone());
                    }
                }
            }
        }
        let is_ours = is_ours(metadata.target());
        for (name, value) in fields.values {
            if is_ours || !line.has(name) {
                line.set(name, value);
            }
        }
        (self.0)(line);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tracing::{Level, debug_span, info, subscriber, warn};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::filter::Filter;
    use crate::format::Format;

    /// Lines that a program logs, without their times.
    fn logged(filter: &str, program: impl FnOnce()) -> Vec<String> {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let taken = Arc::clone(&lines);
        let layer = LineLayer(move |line: Line| taken.lock().push(Format::Text.render(&line)));
        let targets = Filter::parse(filter).unwrap().targets(Level::WARN);
        let registry = tracing_subscriber::registry().with(targets).with(layer);
        subscriber::with_default(registry, program);
        let lines = lines.lock();
        lines.iter().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
    }

    #[test]
    fn fields_stand_before_the_message() {
        let error = std::io::Error::other("no disk");
        let lines = logged("", || {
            warn!(table = %"replay", items = 3, ratio = 0.5, full = true, %error, "it is {}", "full");
        });
        let expected =
            "WARN log table=replay items=3 ratio=0.5 full=true error=\"no disk\": it is full";
        assert_eq!(lines, [expected]);
    }

    #[test]
    fn an_event_has_the_fields_of_its_spans_and_its_own_win() {
        let program = || {
            let _connection = debug_span!("connection", peer = "1.2.3.4:5", table = "a").entered();
            let _stream = debug_span!("stream", table = "b").entered();
            info!("begins");
            warn!(target: "reverb_log", table = "c", "ends");
        };
        let head = "log peer=1.2.3.4:5";
        let expected =
            [format!("INFO {head} table=b: begins"), format!("WARN {head} table=c: ends")];
        assert_eq!(logged("debug", program), expected);
        assert_eq!(logged("", program), ["WARN log table=c: ends"]);
    }

    #[test]
    fn fields_of_foreign_spans_do_not_replace_ours() {
        let program = || {
            let _ours =
                debug_span!(target: "reverb_rpc", "connection", peer = "1.2.3.4:5").entered();
            let span = debug_span!(target: "h2", "Connection", peer = "Server", stream = 1);
            let _theirs = span.entered();
            warn!(target: "h2", peer = "Server", "it ends");
        };
        assert_eq!(logged("debug,h2=debug", program), ["WARN h2 peer=1.2.3.4:5 stream=1: it ends"]);
    }

    #[test]
    fn a_span_has_the_fields_of_the_one_that_it_follows() {
        let program = || {
            let ours = debug_span!(target: "reverb_rpc", "connection", peer = "1.2.3.4:5");
            let theirs = debug_span!(target: "h2", parent: None, "Connection", peer = "Server");
            theirs.follows_from(&ours);
            let _theirs = theirs.entered();
            warn!(target: "h2", "it ends");
        };
        assert_eq!(logged("debug,h2=debug", program), ["WARN h2 peer=1.2.3.4:5: it ends"]);
    }

    #[test]
    fn numbers_that_json_does_not_have_are_text() {
        let lines = logged("", || warn!(rate = f64::NAN, "no rate"));
        assert_eq!(lines, ["WARN log rate=NaN: no rate"]);
    }
}
