// SPDX-License-Identifier: Apache-2.0
//! Cryptography of both ends.

use std::sync::Arc;

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::{SupportedProtocolVersion, version};

/// TLS 1.3 alone: in practice every peer with TLS supports it.
pub(crate) const VERSIONS: &[&SupportedProtocolVersion] = &[&version::TLS13];

/// `ring`, because it builds everywhere. AES with keys of 128 bits comes first: it is a fifth
/// faster than with 256, and bulk data is sent here.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    let mut provider = ring::default_provider();
    provider
        .cipher_suites
        .sort_by_key(|suite| *suite != ring::cipher_suite::TLS13_AES_128_GCM_SHA256);
    Arc::new(provider)
}
