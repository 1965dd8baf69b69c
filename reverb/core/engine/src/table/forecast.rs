// SPDX-License-Identifier: Apache-2.0
//! Forecast of the memory of a full table.

use reverb_data::TableConfig;

/// Part of `max_size` that a forecast needs, but at least `MIN_ITEMS` items.
const MIN_PART: usize = 100;
const MIN_ITEMS: usize = 100;

/// Bytes of an item besides its values and a chunk of each column.
const OVERHEAD_BYTES: u64 = 128;

/// Memory of a table with `max_size` items like the present ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forecast {
    /// `max_size`.
    pub items: u64,
    /// Bytes of an item, with its part of shared chunks.
    pub item_bytes: u64,
    /// Bytes of all items.
    pub bytes: u64,
}

impl Forecast {
    /// Forecast by `size` items of `bytes`; `None` if there are too few.
    pub fn new(max_size: i64, size: usize, bytes: u64) -> Option<Self> {
        let items = u64::try_from(max_size).unwrap_or(0);
        if size < first_size(max_size) {
            return None;
        }
        let size = size as u64;
        let all = u128::from(bytes) * u128::from(items) / u128::from(size);
        Some(Self {
            items,
            item_bytes: bytes / size,
            bytes: u64::try_from(all).unwrap_or(u64::MAX),
        })
    }

    /// Number of items that fit into these bytes, at most all.
    pub fn held(&self, bytes: u64) -> u64 {
        let held = u128::from(self.items) * u128::from(bytes) / u128::from(self.bytes.max(1));
        u64::try_from(held).unwrap_or(u64::MAX).min(self.items)
    }

    /// Upper bound for items with the signature that share nothing and do not shrink; `None` if the
    /// signature does not determine their size.
    pub fn from_signature(config: &TableConfig) -> Option<Self> {
        let signature = &config.signature.as_ref()?.flat;
        let items = u64::try_from(config.max_size).unwrap_or(0);
        let overhead = (signature.0.len() as u64 + 1) * OVERHEAD_BYTES;
        let item_bytes = signature.value_bytes()?.saturating_add(overhead);
        Some(Self { items, item_bytes, bytes: item_bytes.saturating_mul(items) })
    }
}

/// Smallest number of items for a forecast.
fn first_size(max_size: i64) -> usize {
    let max_size = usize::try_from(max_size).unwrap_or(0);
    (max_size / MIN_PART).max(MIN_ITEMS).min(max_size).max(1)
}

/// Times of forecasts: the first one early, later ones as the table grows.
#[derive(Debug)]
pub(super) struct ForecastTimes {
    max_size: i64,
    /// Number of items at which the next forecast is due.
    due_at: usize,
    /// Bytes of the last forecast.
    reported: u64,
}

impl ForecastTimes {
    pub(super) fn new(max_size: i64) -> Self {
        Self { max_size, due_at: first_size(max_size), reported: 0 }
    }

    pub(super) fn is_due(&self, size: usize) -> bool {
        size >= self.due_at
    }

    /// Forecast for a table of `size` items, unless it is close to the last one.
    pub(super) fn take(&mut self, size: usize, bytes: u64) -> Option<Forecast> {
        let forecast = Forecast::new(self.max_size, size, bytes)?;
        self.due_at = size + size / 4 + 1;
        if forecast.bytes.abs_diff(self.reported) * 2 < self.reported {
            return None;
        }
        self.reported = forecast.bytes;
        Some(forecast)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forecast_comes_early_and_again_when_it_changes_by_half() {
        let mut times = ForecastTimes::new(1_000_000);
        assert!(!times.is_due(9_999));
        assert!(times.is_due(10_000));
        let forecast = times.take(10_000, 1_000_000).unwrap();
        assert_eq!(forecast, Forecast { items: 1_000_000, item_bytes: 100, bytes: 100_000_000 });
        assert!(!times.is_due(12_000));
        assert_eq!(times.take(20_000, 2_900_000), None);
        assert_eq!(times.take(40_000, 6_100_000).unwrap().item_bytes, 152);
        assert_eq!(Forecast::new(50, 49, 1), None);
        assert_eq!(Forecast::new(50, 50, 150).unwrap().bytes, 150);
        assert_eq!(Forecast::new(1000, 99, 1), None);
        assert_eq!(
            [0, 33_333_333, 100_000_001].map(|bytes| forecast.held(bytes)),
            [0, 333_333, 1_000_000]
        );
    }
}
