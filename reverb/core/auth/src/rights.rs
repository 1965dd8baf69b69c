// SPDX-License-Identifier: Apache-2.0
//! Rights of a caller on a table.

use std::fmt;

use reverb_data::Right;

/// A set of rights.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Rights(u8);

impl Rights {
    /// Returns true if a right is in the set.
    pub fn contains(self, right: Right) -> bool {
        self.0 & 1 << right as u8 != 0
    }

    /// Rights of the set, in the order of [`Right::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Right> {
        Right::ALL.into_iter().filter(move |&right| self.contains(right))
    }
}

impl FromIterator<Right> for Rights {
    fn from_iter<T: IntoIterator<Item = Right>>(rights: T) -> Self {
        Self(rights.into_iter().fold(0, |set, right| set | 1 << right as u8))
    }
}

/// Form in the tokens file: `sample,update`.
impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, right) in self.iter().enumerate() {
            write!(f, "{}{}", if at > 0 { "," } else { "" }, right.name())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rights({self})")
    }
}
