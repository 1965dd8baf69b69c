// SPDX-License-Identifier: Apache-2.0
//! The token of a client, as the header of its calls.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HeaderValue;
use parking_lot::Mutex;
use reverb_base::Result;
use tokio::time::Instant;

use super::credentials::{bearer, read_token};

/// Minimum time between two checks of the file.
const MIN_AGE: Duration = Duration::from_secs(1);

/// A token, or the file that holds it.
pub(super) enum Token {
    Text(HeaderValue),
    File { path: PathBuf, last: Mutex<CachedToken> },
}

/// Content of a token file when it was last read.
#[derive(Clone)]
pub(super) struct CachedToken {
    header: HeaderValue,
    read_at: Instant,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    pub(super) fn from_text(text: &str) -> Result<Self> {
        Ok(Self::Text(bearer(text, &"token")?))
    }

    pub(super) fn from_file(path: &Path) -> Result<Self> {
        let last = CachedToken { header: read_token(path)?, read_at: Instant::now() };
        Ok(Self::File { path: path.to_owned(), last: Mutex::new(last) })
    }

    /// Copy with a lock of its own.
    pub(super) fn copy(&self) -> Self {
        match self {
            Self::Text(header) => Self::Text(header.clone()),
            Self::File { path, last } => {
                Self::File { path: path.clone(), last: Mutex::new(last.lock().clone()) }
            }
        }
    }

    /// Header for a call that begins now. If the file cannot be read now, its last content is used.
    pub(super) fn header(&self) -> HeaderValue {
        match self {
            Self::Text(header) => header.clone(),
            Self::File { path, last } => {
                let mut last = last.lock();
                if last.read_at.elapsed() >= MIN_AGE {
                    match read_token(path) {
                        Ok(header) => last.header = header,
                        Err(error) => {
                            tracing::warn!("{error}. The previous token is used");
                        }
                    }
                    last.read_at = Instant::now();
                }
                last.header.clone()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_file_is_read_again_and_a_lost_one_keeps_its_token() {
        let path = std::env::temp_dir().join(format!("reverb-token-{}", std::process::id()));
        std::fs::write(&path, "rvb_one\n").unwrap();
        let token = Token::from_file(&path).unwrap();
        let shown = || token.header().to_str().unwrap().to_owned();
        assert_eq!(shown(), "Bearer rvb_one");
        std::fs::write(&path, "rvb_two\n").unwrap();
        assert_eq!(shown(), "Bearer rvb_one");
        tokio::time::advance(MIN_AGE).await;
        assert_eq!(shown(), "Bearer rvb_two");
        std::fs::remove_file(&path).unwrap();
        tokio::time::advance(MIN_AGE).await;
        assert_eq!(shown(), "Bearer rvb_two");
    }
}
