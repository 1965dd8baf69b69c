// SPDX-License-Identifier: Apache-2.0
//! Converts windows to messages and back.

use reverb_base::Result;
use reverb_data::{ColumnSpan, StepWindow};

use crate::generated::sample_stream_request::Window;
use crate::generated::sample_stream_request::window::Span;

/// Message of a window and its spans.
pub fn window_message(window: StepWindow, spans: &[ColumnSpan]) -> Window {
    let StepWindow { length, before, pads_left, pads_right } = window;
    let span = |&ColumnSpan { column, start, stop }: &ColumnSpan| Span { column, start, stop };
    let spans = spans.iter().map(span).collect();
    Window { length, before, pads_left, pads_right, spans, knows_times: true }
}

/// Window of a message.
///
/// # Errors
///
/// `InvalidArgument` that names a number, its value and its limit.
pub fn to_window(message: &Window) -> Result<StepWindow> {
    let Window { length, before, pads_left, pads_right, .. } = *message;
    let window = StepWindow { length, before, pads_left, pads_right };
    window.validate().map(|()| window)
}

/// Spans of a message.
pub fn to_spans(message: &Window) -> Vec<ColumnSpan> {
    let span = |&Span { column, start, stop }: &Span| ColumnSpan { column, start, stop };
    message.spans.iter().map(span).collect()
}
