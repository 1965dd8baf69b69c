// SPDX-License-Identifier: Apache-2.0
//! Certificates for trials: a CA of one's own, and a certificate that it has signed.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use reverb_base::{Error, Result};
use time::{Duration, OffsetDateTime};

/// Longest validity: browsers and other clients refuse more than some 800 days.
const MAX_DAYS: i64 = 825;

/// Clocks that are behind by less than this accept the certificate.
const BEFORE: Duration = Duration::hours(1);

/// Writes `ca.crt`, `ca.key`, `tls.crt` and `tls.key` into a directory, which is created if it is
/// missing. The certificate is for `names` (host names and addresses), for servers and for clients,
/// and valid for `days`. Keys can be read by their owner alone. Returns the paths.
///
/// # Errors
///
/// `InvalidArgument` for a name that cannot be in a certificate, for days out of their range, and
/// if one of the files exists or cannot be written.
pub fn self_signed(directory: &Path, names: &[String], days: i64) -> Result<Vec<PathBuf>> {
    if !(1..=MAX_DAYS).contains(&days) {
        return Err(Error::invalid_argument(format!(
            "days must be from 1 to {MAX_DAYS}, got {days}"
        )));
    }
    if names.is_empty() {
        return Err(Error::invalid_argument("names must have at least one host name, got none"));
    }
    let files = ["ca.crt", "ca.key", "tls.crt", "tls.key"].map(|name| directory.join(name));
    if let Some(path) = files.iter().find(|path| path.exists()) {
        return Err(Error::invalid_argument(format!(
            "{} exists: choose another directory, or remove it",
            path.display()
        )));
    }
    let made = make(names, days);
    let pems = made.map_err(|error| {
        Error::invalid_argument(format!("names {names:?} cannot be in a certificate: {error}"))
    })?;
    fs::create_dir_all(directory).map_err(|error| cannot_write(directory, &error))?;
    for (path, pem) in files.iter().zip(pems) {
        let is_key = path.extension().is_some_and(|extension| extension == "key");
        write(path, &pem, is_key).map_err(|error| cannot_write(path, &error))?;
    }
    Ok(files.to_vec())
}

fn cannot_write(path: &Path, error: &io::Error) -> Error {
    Error::invalid_argument(format!("{} cannot be written: {error}", path.display()))
}

fn make(names: &[String], days: i64) -> std::result::Result<[String; 4], rcgen::Error> {
    let now = OffsetDateTime::now_utc();
    let not_before = now - BEFORE;
    let not_after = now + Duration::days(days);
    let mut ca = CertificateParams::default();
    ca.distinguished_name = named("reverb trial CA");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    (ca.not_before, ca.not_after) = (not_before, not_after);
    let ca_key = KeyPair::generate()?;
    let ca_certificate = ca.self_signed(&ca_key)?;
    let mut leaf = CertificateParams::new(names)?;
    leaf.distinguished_name = named(&names[0]);
    leaf.use_authority_key_identifier_extension = true;
    leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    leaf.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    (leaf.not_before, leaf.not_after) = (not_before, not_after);
    let leaf_key = KeyPair::generate()?;
    let certificate = leaf.signed_by(&leaf_key, &Issuer::from_params(&ca, &ca_key))?;
    Ok([ca_certificate.pem(), ca_key.serialize_pem(), certificate.pem(), leaf_key.serialize_pem()])
}

fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

fn write(path: &Path, text: &str, is_key: bool) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(if is_key { 0o600 } else { 0o644 });
    }
    #[cfg(not(unix))]
    let _ = is_key;
    let mut file = options.open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
