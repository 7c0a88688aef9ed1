"""Parameters of tools: their schema, values that people give, and the words that carry the value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.train.synth import words
from paceline.train.synth.dialogue import Draw, joined


@dataclass(frozen=True, slots=True, eq=False)
class Parameter:
    """One kind of parameter."""

    name: str
    type: str
    description: str
    value: Callable[[Draw], Any]
    phrases: tuple[str, ...]
    """How a request says it; {v} is the value. For booleans: the phrase for true, then for false."""
    options: tuple[str, ...] = ()
    """Members of an enum."""
    schema: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        schema: dict[str, Any] = {"type": self.type, "description": self.description}
        if self.options:
            schema["enum"] = list(self.options)
        if self.type == "array":
            schema["items"] = {"type": "string"}
        object.__setattr__(self, "schema", schema)

    def said(self, draw: Draw, value: Any) -> str:
        """The value in a request's words."""
        if self.type == "boolean":
            return self.phrases[0] if value else self.phrases[1]
        text = joined(value) if isinstance(value, list) else str(value)
        return draw.pick(self.phrases).format(v=text)


def _text(name: str, description: str, value: Callable[[Draw], Any], *phrases: str) -> Parameter:
    return Parameter(name, "string", description, value, phrases)


def _whole(name: str, description: str, low: int, high: int, *phrases: str) -> Parameter:
    return Parameter(name, "integer", description, lambda draw: draw.between(low, high), phrases)


def _enum(name: str, description: str, options: str, *phrases: str) -> Parameter:
    members = tuple(options.split())
    return Parameter(name, "string", description, lambda draw: draw.pick(members), phrases, members)


def _flag(name: str, description: str, yes: str, no: str) -> Parameter:
    return Parameter(name, "boolean", description, lambda draw: draw.chance(0.5), (yes, no))


def _amount(draw: Draw) -> float:
    return draw.between(2, 900) + draw.pick((0.5, 0.25, 0.75, 0.99))


def _title(draw: Draw) -> str:
    return f"{draw.pick(words.ADJECTIVES)} {draw.pick(words.NOUNS)}"


def _several(options: tuple[str, ...]) -> Callable[[Draw], list[str]]:
    return lambda draw: draw.sample(options, draw.between(2, 3))


_TAGS = words.split("urgent work home family travel health money school music food garden sport draft final")
_NOTES = (
    "please hurry", "call me back", "bring a coat", "the key is under the mat", "see you soon", "ring twice",
    "happy birthday", "the meeting is moved", "we are running late", "no onions", "leave it at the door",
    "thank you for your help", "it is too loud", "the light is broken", "ready for review",
)  # fmt: skip

_OTHER_NAMES = {
    "city": "location place town", "country": "nation region", "origin": "source from_city departure",
    "destination": "target to_city arrival", "date": "when start_date day_of_visit", "day": "weekday",
    "time": "at start_time hour", "name": "person full_name customer", "owner": "user author",
    "email": "email_address mail recipient", "phone": "phone_number telephone", "id": "identifier item_id",
    "reference": "ref ticket_id booking_code", "company": "company_name organization vendor",
    "product": "item article product_name", "color": "shade", "title": "heading subject label",
    "keyword": "query search_term topic", "note": "message text comment", "file_name": "file path source",
    "limit": "max_results top_n", "count": "repeat times quantity", "people": "guests group_size seats",
    "minutes": "duration length_minutes", "days": "num_days period", "page": "page_number",
    "score": "points rating", "amount": "sum total value", "weight": "kilograms weight_kg",
    "max_price": "budget price_limit", "tags": "labels topics", "people_names": "participants attendees",
    "cities": "places locations", "priority": "importance urgency", "unit": "temperature_unit units",
    "format": "output_format file_type", "status": "state", "currency": "currency_code",
    "language": "lang target_language", "sort": "order_by sort_order", "mode": "speed_mode",
    "notify": "send_notification alert", "include_details": "details verbose", "recurring": "repeats weekly",
    "private": "is_private hidden", "confirm": "ask_first needs_confirmation",
}  # fmt: skip
"""Other names that tools give to a parameter."""

_KINDS = (
    _text("city", "Name of the city", lambda d: d.pick(words.CITIES), "in {v}", "in the city of {v}"),
    _text("country", "Name of the country", lambda d: d.pick(words.COUNTRIES)[0],
          "in {v}", "for the country {v}"),
    _text("origin", "Where it starts", lambda d: d.pick(words.CITIES), "from {v}", "starting in {v}"),
    _text("destination", "Where it ends", lambda d: d.pick(words.CITIES), "to {v}", "going to {v}"),
    _text("date", "Date as YYYY-MM-DD", words.iso_date, "on {v}", "for the date {v}"),
    _text("day", "Day of the week", lambda d: d.pick(words.DAYS), "on {v}", "this {v}"),
    _text("time", "Time as HH:MM", words.clock, "at {v}", "at the time {v}"),
    _text("name", "Name of the person", lambda d: words.person(d).full, "for {v}", "under the name {v}"),
    _text("owner", "Who owns it", lambda d: words.person(d).full, "that belongs to {v}", "owned by {v}"),
    _text("email", "Email address", lambda d: words.email(d, words.person(d)), "with the email {v}",
          "using the address {v}"),
    _text("phone", "Phone number", words.phone, "with the phone number {v}", "reachable at {v}"),
    _text("id", "Identifier", words.code, "with the id {v}", "number {v}"),
    _text("reference", "Reference code", words.code, "with the reference {v}", "under reference {v}"),
    _text("company", "Name of the company", words.company, "of the company {v}", "from {v}"),
    _text("product", "Name of the product", lambda d: d.pick(words.PRODUCTS),
          "for the product {v}", "about the {v}"),
    _text("color", "Color to use", lambda d: d.pick(words.COLORS), "in {v}", "in the color {v}"),
    _text("title", "Title", _title, "with the title '{v}'",
          "titled '{v}'"),
    _text("keyword", "Word to look for", lambda d: d.pick(words.NOUNS),
          "about '{v}'", "with the keyword '{v}'"),
    _text("note", "Short note", lambda d: d.pick(_NOTES), "with the note '{v}'", "saying '{v}'"),
    _text("file_name", "Name of the file", lambda d: f"{d.pick(words.NOUNS)}_{d.between(1, 99)}.txt",
          "using the file {v}", "from the file {v}"),
    _whole("limit", "Most entries to return", 2, 50, "with at most {v} entries", "limited to {v}"),
    _whole("count", "How many", 2, 20, "{v} times", "with a count of {v}"),
    _whole("people", "Number of people", 2, 12, "for {v} people", "for a group of {v}"),
    _whole("minutes", "Duration in minutes", 5, 90, "for {v} minutes", "lasting {v} minutes"),
    _whole("days", "Number of days", 2, 30, "for {v} days", "over the next {v} days"),
    _whole("year", "Year", 1990, 2030, "for the year {v}", "of the year {v}"),
    _whole("page", "Page number", 2, 99, "on page {v}", "from page {v}"),
    _whole("score", "Score from 1 to 10", 1, 10, "with a score of {v}", "with {v} points"),
    Parameter("amount", "number", "Amount of money", _amount, ("with an amount of {v}", "for {v} dollars")),
    Parameter("weight", "number", "Weight in kilograms", _amount, ("with a weight of {v} kilograms",)),
    Parameter("max_price", "number", "Highest price", _amount,
              ("for at most {v} dollars", "below {v} dollars")),
    Parameter("tags", "array", "Tags", _several(_TAGS), ("tagged {v}", "with the tags {v}")),
    Parameter("people_names", "array", "Names of people", _several(words.FEMALE + words.MALE),
              ("together with {v}", "with the people {v}")),
    Parameter("cities", "array", "Names of cities", _several(words.CITIES),
              ("for the cities {v}", "covering {v}")),
    _enum("priority", "Priority", "low medium high", "with {v} priority", "with the priority {v}"),
    _enum("unit", "Unit of temperature", "celsius fahrenheit kelvin", "in {v}", "in degrees {v}"),
    _enum("format", "Output format", "pdf csv json html", "as {v}", "in {v} format"),
    _enum("size", "Size", "small medium large", "in size {v}", "of {v} size"),
    _enum("status", "Status", "open closed pending done", "with the status {v}", "that is {v}"),
    _enum("currency", "Currency code", "USD EUR GBP JPY CHF", "in {v}", "using {v}"),
    _enum("language", "Language", "English French German Spanish Italian Japanese",
          "in {v}", "in the language {v}"),
    _enum("sort", "Sort order", "newest oldest cheapest nearest", "sorted by {v}", "{v} first"),
    _enum("mode", "Mode", "fast normal quiet", "in {v} mode", "using the {v} mode"),
    _flag("notify", "Whether to notify people", "and notify everyone", "and notify nobody"),
    _flag("include_details", "Whether to include details", "with all details", "without details"),
    _flag("recurring", "Whether it repeats", "as a recurring one", "just this once"),
    _flag("private", "Whether it is private", "and keep it private", "and make it public"),
    _flag("confirm", "Whether to ask first", "and ask before doing it", "and do it without asking"),
)  # fmt: skip


PARAMETERS = tuple(
    (kind, *(replace(kind, name=other) for other in _OTHER_NAMES.get(kind.name, "").split()))
    for kind in _KINDS
)
"""Every kind under each of its names."""


def parameters(draw: Draw) -> list[Parameter]:
    """One to four different kinds, whose phrases do not clash."""
    chosen: list[Parameter] = []
    heads: set[str] = set()
    for names in draw.sample(PARAMETERS, 6):
        parameter = names[0] if draw.chance(0.5) else draw.pick(names)
        shared = {phrase.split("{v}")[0] for phrase in parameter.phrases}
        if not shared & heads:
            heads |= shared
            chosen.append(parameter)
    return chosen[: draw.pick((1, 2, 2, 2, 3, 3, 4))]
