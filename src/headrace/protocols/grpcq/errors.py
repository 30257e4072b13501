"""Our reasons to refuse a request, as gRPC says them."""

from grpc import StatusCode

from headrace.model.errors import Code

STATUS = {
    Code.INVALID: StatusCode.INVALID_ARGUMENT,
    Code.UNAUTHENTICATED: StatusCode.UNAUTHENTICATED,
    Code.FORBIDDEN: StatusCode.PERMISSION_DENIED,
    Code.UNKNOWN: StatusCode.NOT_FOUND,
    Code.VERSION: StatusCode.FAILED_PRECONDITION,
    Code.LIMIT: StatusCode.RESOURCE_EXHAUSTED,
    Code.STORAGE: StatusCode.UNAVAILABLE,
    Code.DRAINING: StatusCode.UNAVAILABLE,
}
