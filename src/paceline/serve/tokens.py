"""`POST /tokenize` and `/detokenize`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.errors import RequestError
from paceline.serve.errors import ApiError
from paceline.serve.protocol import DetokenizeRequest, TokenizeChat, TokenizePrompt

if TYPE_CHECKING:
    from paceline.serve.service import Service


def tokenize(service: Service, body: TokenizePrompt | TokenizeChat) -> dict[str, Any]:
    """Ids of a text, or of messages in the chat format, exactly as a request would have them."""
    tokenizer = service.tokenizer
    if isinstance(body, TokenizeChat):
        _, ids = service.format.encode(body)
    else:
        encode = tokenizer.encode_bare if body.add_special_tokens is False else tokenizer.encode
        try:
            ids = encode(body.prompt)
        except RequestError as error:
            raise ApiError(str(error), param="prompt") from None
    answer: dict[str, Any] = {"count": len(ids), "max_model_len": service.info.max_model_len, "tokens": ids}
    if body.return_token_strs:
        answer["token_strs"] = [tokenizer.backend.id_to_token(token) for token in ids]
    return answer


def detokenize(service: Service, body: DetokenizeRequest) -> dict[str, str]:
    """Text of ids, special tokens included."""
    for token in body.tokens:
        if not 0 <= token < service.info.vocab_size:
            raise ApiError(
                f"token id {token} is outside the vocabulary: ids are 0 to {service.info.vocab_size - 1}",
                param="tokens",
            )
    return {"prompt": service.tokenizer.decode(body.tokens)}
