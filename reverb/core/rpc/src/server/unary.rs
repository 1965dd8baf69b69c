// SPDX-License-Identifier: Apache-2.0
//! Calls that have exactly one message.

use bytes::Bytes;
use reverb_base::{Error, Result};

use super::stop::Stop;
use crate::framing::MessageReader;

/// Reads the message of a call that has exactly one.
///
/// # Errors
///
/// `InvalidArgument` if there is no message, more than one, or a malformed one.
pub async fn read_single_message<M: prost::Message + Default>(
    stop: &Stop,
    reader: &mut MessageReader,
) -> Result<M> {
    decode(read_single_encoded(stop, reader).await?)
}

/// Like `read_single_message`, without decoding it.
///
/// # Errors
///
/// `InvalidArgument` if there is no message, or more than one.
pub async fn read_single_encoded(stop: &Stop, reader: &mut MessageReader) -> Result<Bytes> {
    let message = stop.or(reader.next()).await??;
    let message = message.ok_or_else(|| {
        Error::invalid_argument("The call has no message; it must have exactly one.")
    })?;
    if stop.or(reader.next()).await??.is_some() {
        return Err(several_messages());
    }
    Ok(message)
}

/// Reads and decodes the only message of a call that stays open after it.
///
/// # Errors
///
/// `InvalidArgument` if there is none, or if it is malformed; those of the connection.
pub async fn read_first<M: prost::Message + Default>(
    stop: &Stop,
    reader: &mut MessageReader,
) -> Result<M> {
    let message = stop.or(reader.next()).await??;
    decode(message.ok_or_else(|| {
        Error::invalid_argument("The call has no message; it must begin with one.")
    })?)
}

/// The error of a call with a second message.
pub fn several_messages() -> Error {
    Error::invalid_argument("The call has several messages; it must have one.")
}

/// Decodes a message.
///
/// # Errors
///
/// `InvalidArgument` if it is malformed.
pub fn decode<M: prost::Message + Default>(message: Bytes) -> Result<M> {
    M::decode(message)
        .map_err(|error| Error::invalid_argument(format!("Malformed message: {error}.")))
}
