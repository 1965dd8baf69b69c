// SPDX-License-Identifier: Apache-2.0
//! Numbers of items by their number of steps, for sums over all items that have a window.

use reverb_data::StepWindow;

/// Items of so many steps, or of more, count as one length: each has every window.
const LONGEST: u32 = StepWindow::MAX_STEPS;

/// Number of lengths that are counted together.
const BLOCK: u32 = 256;

/// Numbers of items by length. Takes as much memory as the longest item needs, 264 KiB at most.
#[derive(Debug, Default)]
pub(super) struct Lengths {
    /// Number of items of each length.
    items: Vec<u32>,
    /// Items and their steps in each block of lengths. The last block has one length.
    blocks: Vec<(u64, u64)>,
}

impl Lengths {
    /// Adds an item of so many steps.
    pub(super) fn add(&mut self, steps: u32) {
        let at = steps.min(LONGEST) as usize;
        if at >= self.items.len() {
            self.items.resize(at + 1, 0);
            self.blocks.resize(at / BLOCK as usize + 1, (0, 0));
        }
        self.items[at] += 1;
        let block = &mut self.blocks[at / BLOCK as usize];
        *block = (block.0 + 1, block.1 + u64::from(steps));
    }

    /// Removes an item that was added.
    pub(super) fn remove(&mut self, steps: u32) {
        let at = steps.min(LONGEST) as usize;
        self.items[at] -= 1;
        let block = &mut self.blocks[at / BLOCK as usize];
        *block = (block.0 - 1, block.1 - u64::from(steps));
    }

    /// Number of windows in all items: an item of `shortest` steps has one, a longer one has one
    /// for each step that it has more.
    pub(super) fn num_windows(&self, window: StepWindow) -> u64 {
        let shortest = window.steps_of(1);
        let whole = shortest.div_ceil(BLOCK);
        let mut items = 0;
        let mut steps = 0;
        let part = shortest as usize..self.items.len().min((whole * BLOCK) as usize);
        for (length, &count) in (u64::from(shortest)..).zip(self.items.get(part).unwrap_or(&[])) {
            items += u64::from(count);
            steps += length * u64::from(count);
        }
        for block in self.blocks.get(whole as usize..).unwrap_or(&[]) {
            items += block.0;
            steps += block.1;
        }
        steps - items * u64::from(shortest - 1)
    }

    /// Number of steps of the longest item; one of more than 65,536 counts as that long.
    pub(super) fn longest(&self) -> u32 {
        let Some(block) = self.blocks.iter().rposition(|&(items, _)| items > 0) else { return 0 };
        let first = block * BLOCK as usize;
        let end = self.items.len().min(first + BLOCK as usize);
        self.items[first..end]
            .iter()
            .rposition(|&count| count > 0)
            .map_or(0, |at| (first + at) as u32)
    }
}
