"""Reading what the model wrote: increments of the engine's output to reasoning, content and tool calls.

`registry.make_parser` makes one parser a choice. It is fed (token ids, text) as the engine emits them and
answers with the events of `base`. The rules stand in `qwen3`; `reference` reads the same off the whole text.
"""

from paceline.serve.parsers.base import (
    ContentDelta,
    Event,
    Message,
    OutputParser,
    ParserOptions,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCall,
    ToolCallEnd,
    ToolCallStart,
    ToolSpec,
    assemble,
)
from paceline.serve.parsers.registry import (
    REASONING_PARSERS,
    TOOL_CALL_PARSERS,
    check_names,
    make_parser,
)
from paceline.serve.parsers.tags import TagTokens, opens_reasoning

__all__ = [
    "REASONING_PARSERS",
    "TOOL_CALL_PARSERS",
    "ContentDelta",
    "Event",
    "Message",
    "OutputParser",
    "ParserOptions",
    "ReasoningDelta",
    "TagTokens",
    "ToolArgumentsDelta",
    "ToolCall",
    "ToolCallEnd",
    "ToolCallStart",
    "ToolSpec",
    "assemble",
    "check_names",
    "make_parser",
    "opens_reasoning",
]
