// SPDX-License-Identifier: Apache-2.0
//! Generates `src/generated/` and `proto/descriptors.bin` of `reverb-wire` from its `.proto` files:
//! `make proto`.
//!
//! No `protoc` is needed: the compiler is a Rust library.

use std::error::Error;
use std::fs;
use std::path::Path;

use prost::Message;
use prost_types::FileDescriptorSet;
use prost_types::field_descriptor_proto::Type;

const FILES: [&str; 9] = [
    "reverb_service.proto",
    "replay_service.proto",
    "schema.proto",
    "patterns.proto",
    "checkpoint.proto",
    "reverb_config.proto",
    "grpc/health/v1/health.proto",
    "grpc/reflection/v1/reflection.proto",
    "grpc/reflection/v1alpha/reflection.proto",
];

/// The older reflection service has the same messages as the newer one. Tools see both.
const DESCRIBED_ONLY: &str = "grpc.reflection.v1alpha";

const PACKAGES: [&str; 6] = [
    "deepmind.reverb",
    "google.protobuf",
    "grpc.health.v1",
    "grpc.reflection.v1",
    "reverb",
    "tensorflow",
];

const HEADER: &str = "// SPDX-License-Identifier: Apache-2.0\n";

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../reverb/core/wire");
    let proto = root.join("proto");
    let mut compiler = protox::Compiler::new([&proto])?;
    compiler.include_imports(true).include_source_info(true).open_files(FILES)?;
    let mut set = compiler.file_descriptor_set();

    write_descriptors(set.clone(), &proto.join("descriptors.bin"))?;

    set.file.retain(|file| file.package() != DESCRIBED_ONLY);
    keep_chunk_data_opaque(&mut set);
    let out = std::env::temp_dir().join(format!("reverb-protos-{}", std::process::id()));
    fs::create_dir_all(&out)?;
    let mut config = prost_build::Config::new();
    config
        .out_dir(&out)
        .compile_well_known_types()
        .btree_map(["."])
        .bytes([
            ".deepmind.reverb.ChunkData.data",
            ".grpc.reflection.v1.FileDescriptorResponse.file_descriptor_proto",
        ])
        .compile_fds(set)?;
    for package in PACKAGES {
        let file = format!("{package}.rs");
        let code = format!("{HEADER}{}", fs::read_to_string(out.join(&file))?);
        write_if_changed(&root.join("src/generated").join(file), code.as_bytes())?;
    }
    fs::remove_dir_all(out)?;
    Ok(())
}

/// Writes the descriptors that the Python package loads into its own descriptor pool, dependencies
/// first.
fn write_descriptors(mut set: FileDescriptorSet, path: &Path) -> Result<(), Box<dyn Error>> {
    for file in &mut set.file {
        file.source_code_info = None;
    }
    write_if_changed(path, &set.encode_to_vec())
}

/// Writes a file unless it is up to date. Running programs may read it, and a new time would make
/// the next build compile everything again.
fn write_if_changed(path: &Path, bytes: &[u8]) -> Result<(), Box<dyn Error>> {
    if fs::read(path).ok().as_deref() != Some(bytes) {
        fs::write(path, bytes)?;
    }
    Ok(())
}

/// Changes the type of a chunk's payload to bytes for Rust code, so that it is never re-encoded.
/// The encoding on the wire is the same.
fn keep_chunk_data_opaque(set: &mut FileDescriptorSet) {
    let messages = set.file.iter_mut().flat_map(|file| &mut file.message_type);
    let chunk = messages.into_iter().find(|message| message.name() == "ChunkData");
    let field = chunk.and_then(|chunk| chunk.field.iter_mut().find(|field| field.number() == 5));
    let field = field.expect("schema.proto declares ChunkData.data");
    field.set_type(Type::Bytes);
    field.type_name = None;
}
