// SPDX-License-Identifier: Apache-2.0
//! Flattens nests of dicts, lists and tuples whose structure is known, without Python code.
//!
//! The order is that of dm-tree: dicts by sorted key, tuples (also named ones) and lists by
//! position. Only exact dicts and lists and tuple types are recognised; everything else is left to
//! dm-tree on the Python side.

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple, PyType};
use smallvec::SmallVec;

use crate::locks::Visit;

/// Leaves of a nest in flat order.
pub(crate) type Leaves<'py> = SmallVec<[Bound<'py, PyAny>; 8]>;

/// The containers of a nest.
pub(crate) enum Structure {
    Leaf,
    Dict(Vec<(Py<PyString>, Structure)>),
    List(Vec<Structure>),
    Tuple(Py<PyType>, Vec<Structure>),
}

fn is_container(value: &Bound<'_, PyAny>) -> bool {
    value.is_instance_of::<PyDict>()
        || value.is_instance_of::<PyTuple>()
        || value.is_instance_of::<PyList>()
}

impl Structure {
    /// The structure of a nest, or `None` if it has containers that only dm-tree knows.
    ///
    /// `is_leaf` decides whether a value that is not a container may be a leaf.
    pub(crate) fn from_nest(
        value: &Bound<'_, PyAny>,
        is_leaf: &dyn Fn(&Bound<'_, PyAny>) -> bool,
    ) -> PyResult<Option<Self>> {
        if let Ok(dict) = value.cast_exact::<PyDict>() {
            let mut entries = Vec::with_capacity(dict.len());
            for (key, value) in dict {
                let Ok(key) = key.cast_exact::<PyString>() else { return Ok(None) };
                let Some(child) = Self::from_nest(&value, is_leaf)? else { return Ok(None) };
                entries.push((key.to_string(), key.clone().unbind(), child));
            }
            // Python sorts strings by code point, which is the order of their UTF-8 bytes.
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            return Ok(Some(Self::Dict(
                entries.into_iter().map(|(_, key, child)| (key, child)).collect(),
            )));
        }
        if let Ok(list) = value.cast_exact::<PyList>() {
            return Ok(Self::all(list.iter(), is_leaf)?.map(Self::List));
        }
        if let Ok(tuple) = value.cast::<PyTuple>() {
            let ty = value.get_type();
            // A tuple subclass with fields is a named tuple. Any other subclass may have its own
            // way to be flattened.
            if !value.is_exact_instance_of::<PyTuple>() && !ty.hasattr("_fields")? {
                return Ok(None);
            }
            return Ok(Self::all(tuple.iter(), is_leaf)?
                .map(|children| Self::Tuple(ty.unbind(), children)));
        }
        Ok((!is_container(value) && is_leaf(value)).then_some(Self::Leaf))
    }

    fn all<'py>(
        values: impl Iterator<Item = Bound<'py, PyAny>>,
        is_leaf: &dyn Fn(&Bound<'_, PyAny>) -> bool,
    ) -> PyResult<Option<Vec<Self>>> {
        let mut children = Vec::new();
        for value in values {
            let Some(child) = Self::from_nest(&value, is_leaf)? else { return Ok(None) };
            children.push(child);
        }
        Ok(Some(children))
    }

    /// The labels of the leaves: their paths, joined with `/`.
    pub(crate) fn labels(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let mut labels = Vec::new();
        self.add_labels(py, "", &mut labels)?;
        Ok(labels)
    }

    fn add_labels(&self, py: Python<'_>, path: &str, labels: &mut Vec<String>) -> PyResult<()> {
        let child_path = |key: String| match path {
            "" => key,
            path => format!("{path}/{key}"),
        };
        match self {
            Self::Leaf => labels.push(path.to_owned()),
            Self::Dict(entries) => {
                for (key, child) in entries {
                    child.add_labels(py, &child_path(key.to_str(py)?.to_owned()), labels)?;
                }
            }
            Self::List(children) => {
                for (at, child) in children.iter().enumerate() {
                    child.add_labels(py, &child_path(at.to_string()), labels)?;
                }
            }
            Self::Tuple(ty, children) => {
                let fields: Option<Vec<String>> = match ty.bind(py).getattr_opt("_fields")? {
                    Some(fields) => Some(fields.extract()?),
                    None => None,
                };
                for (at, child) in children.iter().enumerate() {
                    let field = fields.as_ref().and_then(|fields| fields.get(at).cloned());
                    let key = field.unwrap_or_else(|| at.to_string());
                    child.add_labels(py, &child_path(key), labels)?;
                }
            }
        }
        Ok(())
    }

    /// Adds the leaves of a nest of exactly this structure; returns `false` if its structure
    /// differs.
    pub(crate) fn flatten<'py>(
        &self,
        value: &Bound<'py, PyAny>,
        leaves: &mut Leaves<'py>,
    ) -> PyResult<bool> {
        match self {
            Self::Leaf => {
                if is_container(value) {
                    return Ok(false);
                }
                leaves.push(value.clone());
                Ok(true)
            }
            Self::Dict(entries) => {
                let Ok(dict) = value.cast_exact::<PyDict>() else { return Ok(false) };
                if dict.len() != entries.len() {
                    return Ok(false);
                }
                for (key, child) in entries {
                    let Some(value) = dict.get_item(key)? else { return Ok(false) };
                    if !child.flatten(&value, leaves)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Self::List(children) => {
                let Ok(list) = value.cast_exact::<PyList>() else { return Ok(false) };
                Self::flatten_all(children, list.len(), list.iter(), leaves)
            }
            Self::Tuple(ty, children) => {
                if !value.get_type().is(ty) {
                    return Ok(false);
                }
                let Ok(tuple) = value.cast::<PyTuple>() else { return Ok(false) };
                Self::flatten_all(children, tuple.len(), tuple.iter(), leaves)
            }
        }
    }

    fn flatten_all<'py>(
        children: &[Self],
        len: usize,
        values: impl Iterator<Item = Bound<'py, PyAny>>,
        leaves: &mut Leaves<'py>,
    ) -> PyResult<bool> {
        if len != children.len() {
            return Ok(false);
        }
        for (child, value) in children.iter().zip(values) {
            if !child.flatten(&value, leaves)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A structure, and its value.
pub(crate) type KnownStructure<T> = Arc<(Structure, T)>;

/// Known structures of a writer, each with a value; the one that was used last comes first.
pub(crate) struct Known<T>(Mutex<Vec<KnownStructure<T>>>);

const MAX_STRUCTURES: usize = 32;

impl<T: Send + Sync> Known<T> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    pub(crate) fn remember(&self, structure: Structure, meaning: T) -> KnownStructure<T> {
        let known = Arc::new((structure, meaning));
        let new = Arc::clone(&known);
        let surplus = self.0.visit(|all| {
            all.insert(0, new);
            (all.len() > MAX_STRUCTURES).then(|| all.pop())
        });
        drop(surplus);
        known
    }

    /// Leaves of a nest whose structure is known, and its structure.
    pub(crate) fn flatten<'py>(
        &self,
        value: &Bound<'py, PyAny>,
    ) -> PyResult<Option<(Leaves<'py>, KnownStructure<T>)>> {
        let mut at = 0;
        while let Some(known) = self.0.visit(|all| all.get(at).cloned()) {
            let mut leaves = Leaves::new();
            // Without the lock: this may call the `__eq__` of a key.
            if known.0.flatten(value, &mut leaves)? {
                if at > 0 {
                    self.0.visit(|all| all.get_mut(..=at).map(|all| all.rotate_right(1)));
                }
                return Ok(Some((leaves, known)));
            }
            at += 1;
        }
        Ok(None)
    }
}
