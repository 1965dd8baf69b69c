// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;
use reverb_wire::generated::PatternNode;
use reverb_wire::generated::pattern_node::{StartOrNone, StepOrNone, StopOrNone};

use super::*;

/// A simple model of the rules, over a history that is never shortened.
#[derive(Default)]
struct Model {
    history: Vec<[Option<i32>; 2]>,
    open: bool,
    /// Closed steps of the episode.
    steps: i32,
    /// Index of the newest step in its episode.
    index: i32,
    rules: Vec<ModelRule>,
    items: Vec<(usize, Vec<i32>)>,
}

struct ModelRule {
    nodes: Vec<PatternNode>,
    every: i32,
    at_end: bool,
    modulo: i32,
    since: i32,
    counted: bool,
    applied: bool,
}

impl Model {
    /// Appends a step; true if it was accepted.
    fn append(&mut self, values: [Option<i32>; 2], partial: bool) -> bool {
        if self.open {
            let newest = self.history.last_mut().unwrap();
            if (0..2).any(|i| newest[i].is_some() && values[i].is_some()) {
                return false;
            }
            (0..2).for_each(|i| newest[i] = newest[i].or(values[i]));
        } else {
            self.history.push(values);
            self.index = self.steps;
            for rule in &mut self.rules {
                (rule.counted, rule.applied) = (false, false);
            }
        }
        self.open = partial;
        self.steps += i32::from(!partial);
        self.apply(false);
        true
    }

    fn end_episode(&mut self, clear: bool) {
        self.apply(true);
        self.open = false;
        self.steps = 0;
        if clear {
            self.history.clear();
        }
    }

    fn apply(&mut self, end: bool) {
        if self.history.last().is_none_or(|step| *step == [None, None]) {
            return;
        }
        for (i, rule) in self.rules.iter_mut().enumerate() {
            if rule.applied {
                continue;
            }
            rule.since += i32::from(!rule.counted);
            rule.counted = true;
            if rule.since < rule.every || self.index % rule.modulo != 0 || (rule.at_end && !end) {
                continue;
            }
            let cells: Option<Vec<Vec<i32>>> =
                rule.nodes.iter().map(|node| select(&self.history, node)).collect();
            if let Some(cells) = cells {
                self.items.push((i, cells.concat()));
                (rule.applied, rule.since) = (true, 0);
            }
        }
    }
}

/// The result of Python's `x[start:stop:step]` or `x[stop]`, if no value is missing.
fn select(history: &[[Option<i32>; 2]], node: &PatternNode) -> Option<Vec<i32>> {
    let len = history.len() as i32;
    let stop = node.stop_or_none.map_or(0, |StopOrNone::Stop(stop)| stop);
    let (first, end) = match node.start_or_none {
        Some(StartOrNone::Start(start)) => (len + start, len + stop),
        None => (len + stop, len + stop + 1),
    };
    let step = node.step_or_none.map_or(1, |StepOrNone::Step(step)| step);
    let mut values = Vec::new();
    let mut at = first;
    while at < end {
        values.push((*history.get(usize::try_from(at).ok()?)?)[node.flat_source_index as usize]?);
        at += step;
    }
    Some(values)
}

#[derive(Debug, Clone)]
enum Call {
    Append([Option<i32>; 2], bool),
    EndEpisode(bool),
}

fn node() -> impl Strategy<Value = PatternNode> {
    let single = (0..2, 1..5i32).prop_map(|(leaf, k)| at(leaf, -k));
    let range = (0..2, 1..6i32, 0..5i32, 1..4i32).prop_filter_map(
        "start before stop",
        |(leaf, a, b, s)| {
            (a > b).then(|| slice(leaf, -a, (b > 0).then_some(-b), (s > 1).then_some(s)))
        },
    );
    prop_oneof![single, range]
}

/// Nodes, minimum number of steps between items, divisor of the step index, and a flag for the end
/// only.
type RuleSpec = (Vec<PatternNode>, i32, i32, bool);

fn rule() -> impl Strategy<Value = RuleSpec> {
    let often = |few: std::ops::Range<i32>| prop_oneof![Just(1), few];
    (prop::collection::vec(node(), 1..3), often(1..4), often(1..3), prop::bool::weighted(0.2))
}

fn call() -> impl Strategy<Value = Call> {
    let value = || prop::option::weighted(0.8, 0..100i32);
    prop_oneof![
        9 => ([value(), value()], prop::bool::weighted(0.3))
            .prop_map(|(values, partial)| Call::Append(values, partial)),
        1 => any::<bool>().prop_map(Call::EndEpisode),
    ]
}

proptest! {
    #[test]
    fn the_engine_agrees_with_the_rules_in_their_plainest_form(
        mut rules in prop::collection::vec(rule(), 1..4),
        calls in prop::collection::vec(call(), 0..60),
    ) {
        // Every leaf is read, so that none is dropped.
        rules[0].0.extend([at(0, -1), at(1, -1)]);
        let mut model = Model::default();
        let mut protos = Vec::new();
        for (nodes, every, modulo, at_end) in rules {
            let mut conditions = vec![steps_since_applied(every), step_index_modulo(modulo, 0)];
            conditions.extend(at_end.then(is_end_episode));
            protos.push(config("t", nodes.clone(), conditions));
            let since = 0;
            let counted = false;
            let applied = false;
            model.rules.push(ModelRule { nodes, every, at_end, modulo, since, counted, applied });
        }
        let mut bench = Bench::new(&protos);
        for call in calls {
            match call {
                Call::Append(values, partial) => {
                    prop_assert_eq!(
                        bench.append(&values, partial).is_ok(),
                        model.append(values, partial)
                    );
                }
                Call::EndEpisode(clear) => {
                    bench.end_episode(clear);
                    model.end_episode(clear);
                }
            }
            prop_assert_eq!(bench.engine.step_is_open(), model.open);
            prop_assert_eq!(bench.taken(), std::mem::take(&mut model.items));
        }
    }
}
