// SPDX-License-Identifier: Apache-2.0
//! Ops and their kernels: registers a Rust type as an op.

#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::{CString, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::api::{Opaque, Status, api};
use crate::attrs::Attrs;
use crate::failure::{Failure, Outcome};
use crate::tensor::{Input, Output};

/// The interface of an op, in the notation of TensorFlow's op definitions (`"handle: int64"`).
pub(crate) struct Definition {
    pub(crate) name: &'static str,
    pub(crate) inputs: &'static [&'static str],
    pub(crate) outputs: &'static [&'static str],
    pub(crate) attrs: &'static [&'static str],
}

/// An op. TensorFlow makes one instance per node of a graph, and one per set of attributes in
/// eager code.
pub(crate) trait Op: Sized + Send + Sync + 'static {
    /// Interface of the op.
    const DEFINITION: Definition;

    /// Reads the attributes.
    fn create(attrs: &Attrs) -> Outcome<Self>;

    /// Reads the inputs and sets the outputs. May run on several threads at once.
    fn compute(&self, context: &mut Context) -> Outcome<()>;
}

/// Registers an op and its kernel for CPUs.
pub(crate) fn register<T: Op>() -> Outcome<()> {
    let definition = T::DEFINITION;
    let name = c_string(definition.name);
    let status = Status::new();
    let api = api();
    // SAFETY: all texts end with a zero byte and outlive the calls, which copy them;
    // `TF_RegisterOpDefinition` frees the first builder and `TF_RegisterKernelBuilder` the second.
    unsafe {
        let builder = (api.TF_NewOpDefinitionBuilder)(name.as_ptr());
        for text in definition.inputs {
            (api.TF_OpDefinitionBuilderAddInput)(builder, c_string(text).as_ptr());
        }
        for text in definition.outputs {
            (api.TF_OpDefinitionBuilderAddOutput)(builder, c_string(text).as_ptr());
        }
        for text in definition.attrs {
            (api.TF_OpDefinitionBuilderAddAttr)(builder, c_string(text).as_ptr());
        }
        (api.TF_OpDefinitionBuilderSetIsStateful)(builder, true);
        (api.TF_OpDefinitionBuilderSetShapeInferenceFunction)(builder, unknown_shapes);
        (api.TF_RegisterOpDefinition)(builder, status.raw());
        status.check()?;
        let kernel = (api.TF_NewKernelBuilder)(
            name.as_ptr(),
            c"CPU".as_ptr(),
            create::<T>,
            compute::<T>,
            delete::<T>,
        );
        (api.TF_RegisterKernelBuilder)(name.as_ptr(), kernel, status.raw());
    }
    status.check()
}

fn c_string(text: &str) -> CString {
    CString::new(text).expect("definitions hold no zero bytes")
}

/// The shapes of outputs depend on attributes that a shape function cannot read, so the Python side
/// sets them.
extern "C" fn unknown_shapes(context: Opaque, status: Opaque) {
    // SAFETY: TensorFlow passes a context and a status that live during the call.
    unsafe { (api().TF_ShapeInferenceContextSetUnknownShape)(context, status) };
}

extern "C" fn create<T: Op>(construction: Opaque) -> Opaque {
    let created = catch_unwind(|| T::create(&Attrs::read(construction)?));
    match created.unwrap_or_else(|panic| Err(bug(&*panic))) {
        Ok(op) => Box::into_raw(Box::new(op)).cast(),
        Err(failure) => {
            let status = Status::from_failure(&failure);
            // SAFETY: TensorFlow passes a construction that lives during the call.
            unsafe { (api().TF_OpKernelConstruction_Failure)(construction, status.raw()) };
            std::ptr::null_mut()
        }
    }
}

extern "C" fn compute<T: Op>(kernel: Opaque, context: Opaque) {
    let computed = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: `create` made the kernel, and TensorFlow deletes it only after the last call. If
        // `create` failed, the pointer is null and there is no call.
        let op = unsafe { kernel.cast::<T>().as_ref() };
        let op = op.ok_or_else(|| Failure::internal("the op was not created"))?;
        op.compute(&mut Context { raw: context })
    }));
    if let Err(failure) = computed.unwrap_or_else(|panic| Err(bug(&*panic))) {
        let status = Status::from_failure(&failure);
        // SAFETY: TensorFlow passes a context that lives during the call.
        unsafe { (api().TF_OpKernelContext_Failure)(context, status.raw()) };
    }
}

extern "C" fn delete<T: Op>(kernel: Opaque) {
    if !kernel.is_null() {
        // SAFETY: `create` made it with `Box::into_raw`, and TensorFlow deletes it once.
        let op = unsafe { Box::from_raw(kernel.cast::<T>()) };
        // A panic cannot be reported here.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(op)));
    }
}

/// The failure for a panic, which must not cross into TensorFlow.
fn bug(panic: &(dyn Any + Send)) -> Failure {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    Failure::internal(format!("{text} (This is a bug of reverb; please report it.)"))
}

/// One call of an op.
pub(crate) struct Context {
    raw: Opaque,
}

impl Context {
    /// The number of inputs; each input of a list counts.
    pub(crate) fn num_inputs(&self) -> usize {
        // SAFETY: the context lives during the call that it was made for.
        let count = unsafe { (api().TF_NumInputs)(self.raw) };
        usize::try_from(count).unwrap_or(0)
    }

    /// An input.
    pub(crate) fn input(&self, index: usize) -> Outcome<Input> {
        let status = Status::new();
        let mut tensor = std::ptr::null_mut();
        // SAFETY: the context is alive, and the new tensor belongs to `Input`, which frees it.
        unsafe {
            (api().TF_GetInput)(self.raw, index as c_int, &raw mut tensor, status.raw());
        }
        status.check()?;
        Input::new(tensor)
    }

    /// Sets an output.
    pub(crate) fn set_output(&mut self, index: usize, output: Output) -> Outcome<()> {
        let status = Status::new();
        let tensor = output.into_tensor()?;
        // SAFETY: the context is alive, and TensorFlow holds its own reference to the tensor from
        // now on.
        unsafe {
            (api().TF_SetOutput)(self.raw, index as c_int, tensor, status.raw());
            (api().TF_DeleteTensor)(tensor);
        }
        status.check()
    }

    /// Forwards an input to an output; they share the memory.
    pub(crate) fn forward(&mut self, input: usize, output: usize) -> Outcome<()> {
        let input = self.input(input)?;
        let status = Status::new();
        // SAFETY: context and tensor are alive, and TensorFlow holds its own reference to the
        // tensor from now on.
        unsafe { (api().TF_SetOutput)(self.raw, output as c_int, input.raw(), status.raw()) };
        status.check()
    }
}
