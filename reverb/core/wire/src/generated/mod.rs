// SPDX-License-Identifier: Apache-2.0
//! The messages, written from `proto/` by `make proto`. Do not edit the files beside this one.

#![allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]

/// Messages of package `deepmind`.
pub mod deepmind {
    /// Messages of package `deepmind.reverb`.
    pub mod reverb {
        include!("deepmind.reverb.rs");
    }
}

/// Messages of package `google`.
pub mod google {
    /// Messages of package `google.protobuf`.
    pub mod protobuf {
        include!("google.protobuf.rs");
    }
}

/// Messages of package `grpc`: of the services that every gRPC server may have.
pub mod grpc {
    /// Messages of package `grpc.health.v1`.
    pub mod health {
        include!("grpc.health.v1.rs");
    }
    /// Messages of package `grpc.reflection.v1`, and of `grpc.reflection.v1alpha`.
    pub mod reflection {
        include!("grpc.reflection.v1.rs");
    }
}

/// Messages of package `reverb`: of calls that are our own.
pub mod reverb {
    include!("reverb.rs");
}

/// Messages of package `tensorflow`.
pub mod tensorflow {
    include!("tensorflow.rs");
}

pub use deepmind::reverb::*;
