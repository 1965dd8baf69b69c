// SPDX-License-Identifier: Apache-2.0
//! Status as JSON in protobuf's mapping: camelCase names, 64-bit integers as strings.

use std::sync::LazyLock;

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, SerializeOptions};
use reverb_wire::DESCRIPTORS;
use reverb_wire::generated::reverb::StatusResponse;

/// The descriptions of all messages and services.
pub(crate) static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(DESCRIPTORS).expect("it was checked when it was generated")
});

pub(crate) static DESCRIPTOR: LazyLock<MessageDescriptor> = LazyLock::new(|| {
    POOL.get_message_by_name("reverb.StatusResponse").expect("a test asks for it")
});

/// The JSON of a status, with all fields.
pub(crate) fn encode(status: &StatusResponse) -> Vec<u8> {
    let bytes = status.encode_to_vec();
    let message = DynamicMessage::decode(DESCRIPTOR.clone(), &bytes[..]).expect("just encoded");
    let mut json = serde_json::Serializer::new(Vec::new());
    let options = SerializeOptions::new().skip_default_fields(false);
    message.serialize_with_options(&mut json, &options).expect("numbers and strings");
    json.into_inner()
}

#[cfg(test)]
mod tests {
    use reverb_wire::generated::reverb::TableStatus;

    use super::*;

    #[test]
    fn fields_have_the_names_of_protobuf() {
        let name = "a\"<b>\u{1F600}".to_owned();
        let table = TableStatus { name, num_items: 3, cursor: f64::INFINITY, ..Default::default() };
        let status = StatusResponse { tables: vec![table], ..Default::default() };
        let json: serde_json::Value = serde_json::from_slice(&encode(&status)).unwrap();
        assert_eq!(json["tables"][0]["name"], "a\"<b>\u{1F600}");
        assert_eq!(json["tables"][0]["numItems"], "3");
        assert_eq!(json["tables"][0]["cursor"], "Infinity");
        assert_eq!(json["startedAtNs"], "0");
    }
}
