// SPDX-License-Identifier: Apache-2.0
//! Element types, numbered and named as TensorFlow does.

use reverb_base::error::{Error, Result};

macro_rules! dtypes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal, $size:literal;)*) => {
        /// The type of a tensor's elements. The discriminant is TensorFlow's `DataType` number.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[allow(missing_docs)]
        pub enum DType { $($name = $number,)* }

        impl DType {
            /// All types.
            pub const ALL: &'static [DType] = &[$(DType::$name,)*];

            /// Type with this TensorFlow number.
            pub fn from_number(number: i32) -> Result<Self> {
                match number {
                    $($number => Ok(DType::$name),)*
                    _ => Err(Error::invalid_argument(format!(
                        "Tensor of dtype number {number} is not supported for (de)compression."
                    ))),
                }
            }

            /// TensorFlow's name of the type, for error texts.
            pub fn name(self) -> &'static str {
                match self { $(DType::$name => $text,)* }
            }

            /// Name of the NumPy dtype of its elements in memory; for types that NumPy lacks, of
            /// the package `ml_dtypes`.
            pub fn numpy_name(self) -> &'static str {
                match self {
                    DType::String => "object",
                    DType::Float32 => "float32",
                    DType::Float64 => "float64",
                    DType::Float16 => "float16",
                    DType::QInt8 => "int8",
                    DType::QUInt8 => "uint8",
                    DType::QInt16 => "int16",
                    DType::QUInt16 => "uint16",
                    DType::QInt32 => "int32",
                    other => other.name(),
                }
            }

            /// Bytes of one stored element; 0 for strings, whose elements vary.
            pub fn size(self) -> usize {
                match self { $(DType::$name => $size,)* }
            }
        }
    };
}

dtypes! {
    Float32 = 1, "float", 4;
    Float64 = 2, "double", 8;
    Int32 = 3, "int32", 4;
    UInt8 = 4, "uint8", 1;
    Int16 = 5, "int16", 2;
    Int8 = 6, "int8", 1;
    String = 7, "string", 0;
    Complex64 = 8, "complex64", 8;
    Int64 = 9, "int64", 8;
    Bool = 10, "bool", 1;
    QInt8 = 11, "qint8", 1;
    QUInt8 = 12, "quint8", 1;
    QInt32 = 13, "qint32", 4;
    BFloat16 = 14, "bfloat16", 2;
    QInt16 = 15, "qint16", 2;
    QUInt16 = 16, "quint16", 2;
    UInt16 = 17, "uint16", 2;
    Complex128 = 18, "complex128", 16;
    Float16 = 19, "half", 2;
    UInt32 = 22, "uint32", 4;
    UInt64 = 23, "uint64", 8;
    Float8E5M2 = 24, "float8_e5m2", 1;
    Float8E4M3FN = 25, "float8_e4m3fn", 1;
    Int4 = 29, "int4", 1;
    UInt4 = 30, "uint4", 1;
}

impl DType {
    /// TensorFlow's number of the type.
    pub fn number(self) -> i32 {
        i32::from(self as u8)
    }

    /// Width in bytes if delta encoding applies to the type: the plain integers.
    pub fn delta_width(self) -> Option<usize> {
        match self {
            DType::Int8 | DType::UInt8 => Some(1),
            DType::Int16 | DType::UInt16 => Some(2),
            DType::Int32 | DType::UInt32 => Some(4),
            DType::Int64 | DType::UInt64 => Some(8),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip_and_unknown_ones_are_refused() {
        for &dtype in DType::ALL {
            assert_eq!(DType::from_number(dtype.number()), Ok(dtype));
        }
        assert!(DType::from_number(20).is_err());
        assert!(DType::from_number(-1).is_err());
    }
}
