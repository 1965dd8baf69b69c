// SPDX-License-Identifier: Apache-2.0
//! Conversions between generated messages and the types of the core.

pub mod item_condition;
pub mod rollouts;
pub mod signature;
pub mod table_config;
pub mod table_info;
pub mod window;
