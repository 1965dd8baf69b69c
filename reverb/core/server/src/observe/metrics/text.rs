// SPDX-License-Identifier: Apache-2.0
//! The text formats of Prometheus: its own, version 0.0.4, and `OpenMetrics` 1.0.
//!
//! They differ in the names of counters and of infos in `# TYPE` lines, and in the last line.

use std::fmt::Write;

/// Format of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Prometheus,
    OpenMetrics,
}

impl Format {
    /// The format for a client that accepts these types.
    pub(crate) fn accepted_by(accept: &str) -> Self {
        let wanted = accept.split(',').any(|kind| {
            let mut parts = kind.split(';').map(str::trim);
            let is_ours = parts.next() == Some("application/openmetrics-text");
            // A weight of 0 means "not acceptable".
            is_ours && !parts.any(|part| part.strip_prefix("q=").is_some_and(is_zero))
        });
        if wanted { Self::OpenMetrics } else { Self::Prometheus }
    }

    /// Content type of this format.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

fn is_zero(weight: &str) -> bool {
    weight.parse() == Ok(0.0)
}

/// Type of a family of series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Gauge,
    /// A counter, with a name that ends in `_total`.
    Counter,
    Histogram,
    /// Constant facts as labels, with a name that ends in `_info`.
    Info,
}

/// Name and value of a label.
pub(crate) type Label<'a> = (&'static str, &'a str);

/// A text under construction. The series of a family follow each other.
#[derive(Debug)]
pub(crate) struct Text {
    format: Format,
    out: String,
    family: &'static str,
    /// Value of the label `shard` of all series, for a shard of a group.
    shard: Option<String>,
}

impl Text {
    pub(crate) fn new(format: Format, shard: Option<i32>) -> Self {
        let shard = shard.map(|index| index.to_string());
        Self { format, out: String::new(), family: "", shard }
    }

    /// Begins a family. `help` is one line.
    pub(crate) fn family(&mut self, name: &'static str, kind: Kind, help: &str) {
        let mut type_name = kind_name(kind);
        let mut shown = name;
        match (self.format, kind) {
            (Format::OpenMetrics, Kind::Counter) => {
                shown = name.strip_suffix("_total").unwrap_or(name);
            }
            (Format::OpenMetrics, Kind::Info) => {
                shown = name.strip_suffix("_info").unwrap_or(name);
            }
            // The older format has no infos.
            (Format::Prometheus, Kind::Info) => type_name = kind_name(Kind::Gauge),
            _ => {}
        }
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(self.out, "# HELP {shown} {help}\n# TYPE {shown} {type_name}");
        self.family = name;
    }

    /// Adds a series to the family.
    pub(crate) fn series(&mut self, labels: &[Label<'_>], value: f64) {
        self.line("", labels, None, value);
    }

    /// Adds a histogram to the family: the number of values in each bucket, and the number of
    /// values above all bounds.
    pub(crate) fn histogram(
        &mut self,
        labels: &[Label<'_>],
        buckets: impl Iterator<Item = (f64, u64)>,
        above: u64,
        sum: f64,
    ) {
        let mut count = 0;
        for (bound, values) in buckets {
            count += values;
            self.line("_bucket", labels, Some(bound), count as f64);
        }
        count += above;
        self.line("_bucket", labels, Some(f64::INFINITY), count as f64);
        self.line("_sum", labels, None, sum);
        self.line("_count", labels, None, count as f64);
    }

    /// The whole text.
    pub(crate) fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.out.push_str("# EOF\n");
        }
        self.out
    }

    fn line(&mut self, suffix: &str, labels: &[Label<'_>], bound: Option<f64>, value: f64) {
        self.out.push_str(self.family);
        self.out.push_str(suffix);
        let mut separator = '{';
        let shard = self.shard.as_deref().map(|shard| ("shard", shard));
        for (name, value) in labels.iter().copied().chain(shard) {
            self.out.push(separator);
            separator = ',';
            self.out.push_str(name);
            self.out.push_str("=\"");
            push_escaped(&mut self.out, value);
            self.out.push('"');
        }
        if let Some(bound) = bound {
            self.out.push(separator);
            separator = ',';
            self.out.push_str("le=\"");
            push_number(&mut self.out, bound, true);
            self.out.push('"');
        }
        if separator == ',' {
            self.out.push('}');
        }
        self.out.push(' ');
        push_number(&mut self.out, value, false);
        self.out.push('\n');
    }
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Gauge => "gauge",
        Kind::Counter => "counter",
        Kind::Histogram => "histogram",
        Kind::Info => "info",
    }
}

fn push_escaped(out: &mut String, value: &str) {
    for character in value.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            other => out.push(other),
        }
    }
}

/// Writes a number; `with_point` adds a decimal point, as bounds in `OpenMetrics` need.
fn push_number(out: &mut String, number: f64, with_point: bool) {
    let written = if number == f64::INFINITY {
        out.push_str("+Inf");
        Ok(())
    } else if number == f64::NEG_INFINITY {
        out.push_str("-Inf");
        Ok(())
    } else if with_point {
        write!(out, "{number:?}")
    } else {
        write!(out, "{number}")
    };
    debug_assert!(written.is_ok());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(format: Format) -> String {
        let mut text = Text::new(format, None);
        text.family("a_info", Kind::Info, "Info.");
        text.series(&[("version", "1")], 1.0);
        text.family("b_total", Kind::Counter, "Counter.");
        text.series(&[("table", "a\"b\\c\nd"), ("reason", "é")], 12.0);
        text.family("c", Kind::Gauge, "Gauge.");
        text.series(&[], 0.5);
        text.series(&[("x", "")], f64::NEG_INFINITY);
        text.family("d_seconds", Kind::Histogram, "Histogram.");
        text.histogram(&[("x", "y")], [(1e-6, 1), (1.0, 2)].into_iter(), 4, 1e6);
        text.finish()
    }

    #[test]
    fn both_formats() {
        let prometheus = text(Format::Prometheus);
        assert_eq!(
            prometheus,
            r#"# HELP a_info Info.
# TYPE a_info gauge
a_info{version="1"} 1
# HELP b_total Counter.
# TYPE b_total counter
b_total{table="a\"b\\c\nd",reason="é"} 12
# HELP c Gauge.
# TYPE c gauge
c 0.5
c{x=""} -Inf
# HELP d_seconds Histogram.
# TYPE d_seconds histogram
d_seconds_bucket{x="y",le="1e-6"} 1
d_seconds_bucket{x="y",le="1.0"} 3
d_seconds_bucket{x="y",le="+Inf"} 7
d_seconds_sum{x="y"} 1000000
d_seconds_count{x="y"} 7
"#
        );
        let open = prometheus
            .replace("a_info Info.", "a Info.")
            .replace("TYPE a_info gauge", "TYPE a info")
            .replace("b_total Counter.", "b Counter.")
            .replace("TYPE b_total", "TYPE b");
        assert_eq!(text(Format::OpenMetrics), open + "# EOF\n");
    }

    #[test]
    fn clients_choose_the_format() {
        for (accept, format) in [
            ("", Format::Prometheus),
            ("*/*", Format::Prometheus),
            ("text/plain;version=0.0.4", Format::Prometheus),
            ("application/openmetrics-text", Format::OpenMetrics),
            ("text/plain;q=0.5, application/openmetrics-text; version=1.0.0;q=0.8", {
                Format::OpenMetrics
            }),
            ("application/openmetrics-text;q=0.0,text/plain", Format::Prometheus),
        ] {
            assert_eq!(Format::accepted_by(accept), format, "{accept}");
        }
    }
}
