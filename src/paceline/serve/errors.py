"""Errors as OpenAI's clients expect them: a status, a body of one shape, and the offending `param`."""

from __future__ import annotations

from typing import Any

from paceline.errors import CapacityError, PacelineError, RequestError

RETRY_AFTER_S = 1


class ApiError(Exception):
    """An answer that is an error. `param` is the path of the offending field, such as `messages[0].role`."""

    def __init__(
        self,
        message: str,
        status: int = 400,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return {
            "error": {
                "message": str(self),
                "type": _KINDS.get(self.status, "invalid_request_error"),
                "param": self.param,
                "code": self.code,
            }
        }


_KINDS = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}


def too_busy(waiting: int, most: int) -> ApiError:
    """The queue is full."""
    return ApiError(
        f"{waiting} choices wait for a place already, and at most {most} may: try again",
        429,
        code="queue_full",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )


def as_api_error(error: PacelineError) -> ApiError:
    """What an error of the engine means for the client."""
    if isinstance(error, RequestError):
        return ApiError(str(error), param=error.param)
    if isinstance(error, CapacityError):
        return ApiError(str(error), code="capacity_exceeded")
    return ApiError(str(error), 500)
