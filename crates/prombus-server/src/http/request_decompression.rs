//! Decompression of request bodies, a piece at a time: gzip and zstd.
//!
//! Memory is bounded for any input: a piece of output is small, and a zstd window is at most 8 MiB, which is the limit of
//! RFC 9659 for HTTP.

use super::ApiError;
use super::error::SUPPORTED_ENCODINGS;
use super::fields::shown;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::{Buf as _, Bytes};
use flate2::write::MultiGzDecoder;
use std::io::Write as _;
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

/// Input of one gzip step. The output is at most about a thousand times as large.
const GZIP_INPUT_BYTES: usize = 1024;
/// Maximum output of one zstd step.
const ZSTD_OUTPUT_BYTES: usize = 64 * 1024;
/// The base-2 logarithm of the largest allowed window: 8 MiB.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// Decompresses one body.
pub(super) enum BodyDecoder {
    Gzip(Box<MultiGzDecoder<Vec<u8>>>),
    Zstd(ZstdDecoder),
}

pub(super) struct ZstdDecoder {
    context: DCtx<'static>,
    /// Whether the last output filled its buffer, so that there may be more output without further input.
    may_have_more: bool,
    /// Whether the current zstd frame is incomplete.
    is_in_frame: bool,
}

impl BodyDecoder {
    /// The decoder for the body's `Content-Encoding`; `None` if the body is not compressed.
    pub(super) fn of(headers: &HeaderMap) -> Result<Option<Self>, ApiError> {
        let mut values = headers.get_all(header::CONTENT_ENCODING).iter();
        let Some(value) = values.next() else { return Ok(None) };
        let name = value.to_str().unwrap_or_default().trim().to_ascii_lowercase();
        match name.as_str() {
            _ if values.next().is_some() => Err(unsupported("several encodings")),
            "" | "identity" => Ok(None),
            "gzip" | "x-gzip" => Ok(Some(Self::Gzip(Box::new(MultiGzDecoder::new(Vec::new()))))),
            "zstd" => {
                let mut context = DCtx::create();
                context
                    .set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_LOG_MAX))
                    .map_err(|code| ApiError::internal(zstd_safe::get_error_name(code)))?;
                Ok(Some(Self::Zstd(ZstdDecoder { context, may_have_more: false, is_in_frame: false })))
            }
            _ => Err(unsupported(&format!("{:?}", shown(&name)))),
        }
    }

    /// Memory that the decoder uses, without buffers of a few kilobytes.
    pub(super) fn memory_bytes(&self) -> usize {
        match self {
            Self::Gzip(_) => 0,
            Self::Zstd(zstd) => zstd.context.sizeof(),
        }
    }

    /// Whether [`decode`](Self::decode) may return output without further input.
    pub(super) fn may_have_more(&self) -> bool {
        matches!(self, Self::Zstd(ZstdDecoder { may_have_more: true, .. }))
    }

    /// Consumes some of the input. The output may be empty.
    pub(super) fn decode(&mut self, input: &mut Bytes) -> Result<Bytes, ApiError> {
        match self {
            Self::Gzip(gzip) => {
                let length = input.len().min(GZIP_INPUT_BYTES);
                let taken = gzip.write(&input[..length]).map_err(|error| invalid("gzip", error))?;
                input.advance(taken);
                Ok(std::mem::take(gzip.get_mut()).into())
            }
            Self::Zstd(zstd) => zstd.decode(input),
        }
    }

    /// Ends the input and returns the rest of the output.
    pub(super) fn finish(self) -> Result<Bytes, ApiError> {
        match self {
            Self::Gzip(gzip) => Ok(gzip.finish().map_err(|error| invalid("gzip", error))?.into()),
            Self::Zstd(zstd) if zstd.is_in_frame => Err(invalid("zstd", "the data is truncated")),
            Self::Zstd(_) => Ok(Bytes::new()),
        }
    }
}

impl ZstdDecoder {
    fn decode(&mut self, input: &mut Bytes) -> Result<Bytes, ApiError> {
        let mut decoded = Vec::with_capacity(ZSTD_OUTPUT_BYTES);
        let mut output = OutBuffer::around(&mut decoded);
        let mut source = InBuffer::around(input);
        let wanted = self
            .context
            .decompress_stream(&mut output, &mut source)
            .map_err(|code| invalid("zstd", zstd_safe::get_error_name(code)))?;
        let taken = source.pos();
        input.advance(taken);
        self.is_in_frame = wanted != 0;
        // A completed frame has no more output; called without input, the decoder would expect the next frame.
        self.may_have_more = wanted != 0 && decoded.len() == decoded.capacity();
        Ok(decoded.into())
    }
}

fn unsupported(what: &str) -> ApiError {
    let message = format!("unsupported Content-Encoding: {what}; supported: {SUPPORTED_ENCODINGS}, identity");
    ApiError::bad_request(message).with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE)
}

fn invalid(encoding: &str, error: impl std::fmt::Display) -> ApiError {
    ApiError::bad_request(format!("the body is not valid {encoding}: {error}"))
}
