"""Names of tools: verbs times nouns, and what people say when they want one.

Half of the combinations, by a hash of the pair, never appear in training: a model that names them has copied
them from the tools on offer.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.train.synth.dialogue import Draw, is_held_out
from paceline.train.synth.words import split

# Verb in the name: what the description says, ways to ask.
VERBS: dict[str, tuple[str, tuple[str, ...]]] = {
    "get": ("Get", ("get", "show me")),
    "fetch": ("Fetch", ("fetch", "bring me")),
    "list": ("List", ("list", "show all entries of")),
    "find": ("Find", ("find", "look up")),
    "search": ("Search", ("search", "search through")),
    "create": ("Create", ("create", "make")),
    "add": ("Add", ("add", "put in")),
    "delete": ("Delete", ("delete", "get rid of")),
    "remove": ("Remove", ("remove", "take away")),
    "update": ("Update", ("update", "change")),
    "edit": ("Edit", ("edit", "modify")),
    "rename": ("Rename", ("rename", "give a new name to")),
    "copy": ("Copy", ("copy", "make a copy of")),
    "move": ("Move", ("move",)),
    "send": ("Send", ("send",)),
    "share": ("Share", ("share",)),
    "book": ("Book", ("book",)),
    "reserve": ("Reserve", ("reserve", "hold")),
    "cancel": ("Cancel", ("cancel", "call off")),
    "schedule": ("Schedule", ("schedule", "plan")),
    "confirm": ("Confirm", ("confirm",)),
    "check": ("Check", ("check", "have a look at")),
    "track": ("Track", ("track", "follow")),
    "compare": ("Compare", ("compare",)),
    "calculate": ("Calculate", ("calculate", "work out")),
    "estimate": ("Estimate", ("estimate", "give a rough figure for")),
    "convert": ("Convert", ("convert",)),
    "translate": ("Translate", ("translate",)),
    "summarize": ("Summarize", ("summarize", "sum up")),
    "validate": ("Validate", ("validate", "verify")),
    "count": ("Count", ("count",)),
    "export": ("Export", ("export",)),
    "import": ("Import", ("import", "load")),
    "print": ("Print", ("print",)),
    "upload": ("Upload", ("upload",)),
    "download": ("Download", ("download",)),
    "archive": ("Archive", ("archive", "put into the archive")),
    "restore": ("Restore", ("restore", "bring back")),
    "start": ("Start", ("start", "begin")),
    "stop": ("Stop", ("stop", "end")),
    "pause": ("Pause", ("pause",)),
    "open": ("Open", ("open",)),
    "close": ("Close", ("close",)),
    "lock": ("Lock", ("lock",)),
    "rate": ("Rate", ("rate",)),
    "order": ("Order", ("order",)),
    "approve": ("Approve", ("approve",)),
    "reject": ("Reject", ("reject", "turn down")),
}  # fmt: skip
NOUNS = split(
    "weather,weather forecast,news,stock,flight status,"
    "flight,hotel room,train ticket,bus route,rental car,taxi ride,restaurant table,"
    "dinner reservation,meeting,calendar event,reminder,alarm,timer,todo item,shopping list,"
    "grocery order,package,shipment,invoice,payment,bank transfer,bank account,budget,expense report,"
    "tax form,loan,mortgage rate,stock price,exchange rate,currency,crypto wallet,insurance claim,"
    "contract,order,customer,customer record,support ticket,user account,user profile,password,email,"
    "email draft,text message,chat room,phone call,contact,newsletter,blog post,comment,review,photo,"
    "photo album,video,video clip,movie,movie ticket,song,playlist,podcast,radio station,book,"
    "library loan,recipe,meal plan,workout,step goal,sleep log,heart rate,doctor appointment,"
    "prescription,medical record,vaccine record,pet profile,garden plan,light,door,window blind,"
    "thermostat,oven,washing machine,robot vacuum,security camera,parking spot,charging station,"
    "fuel price,traffic report,map route,delivery address,warehouse item,product,product price,"
    "discount code,gift card,shopping cart,subscription,survey,quiz,course,lesson,homework,exam result,"
    "school report,job offer,job application,resume,employee record,payroll,vacation request,"
    "time sheet,project,project plan,task,milestone,bug report,pull request,code branch,database,"
    "database table,server,server log,backup,file,folder,document,spreadsheet,presentation,pdf page,"
    "image,language,sentence,news article,sports score,football match,concert ticket,museum tour,"
    "event ticket,guest list,wedding plan,birthday card,translation,dictionary entry,unit,distance,"
    "temperature,air quality,water level,earthquake report,tide table,moon phase",
    ",",
)
SHARE = 2
"""One name in so many is held out."""


@dataclass(frozen=True, slots=True)
class ToolName:
    """A verb and a noun with spaces."""

    verb: str
    noun: str

    @property
    def snake(self) -> str:
        """'cancel_dinner_reservation'."""
        return f"{self.verb}_{self.noun.replace(' ', '_')}"

    @property
    def camel(self) -> str:
        """'cancelDinnerReservation'."""
        return self.verb + "".join(word.capitalize() for word in self.noun.split())

    @property
    def dotted(self) -> str:
        """'dinner_reservation.cancel'."""
        return f"{self.noun.replace(' ', '_')}.{self.verb}"

    def spelled(self, style: str) -> str:
        """The name in one of the styles: snake, camel or dotted."""
        return {"snake": self.snake, "camel": self.camel, "dotted": self.dotted}[style]

    @property
    def held_out(self) -> bool:
        """Whether this pair may not appear in training."""
        return is_held_out("tool", self.verb, self.noun, one_in=SHARE)


_VERB_LIST = tuple(VERBS)


def name_of(draw: Draw, held_out: bool, verb: str | None = None, noun: str | None = None) -> ToolName:
    """A name of one half or the other; a verb or noun may be given."""
    while True:
        found = ToolName(verb or draw.pick(_VERB_LIST), noun or draw.pick(NOUNS))
        if found.held_out == held_out:
            return found


def names(draw: Draw, count: int) -> list[ToolName]:
    """Different names to offer together. Held-out dialogues take turns between unseen and seen names.

    Some share a verb or a noun with the first: only the whole name tells them apart.
    """
    found: list[ToolName] = []
    while len(found) < count:
        held_out = draw.split == "held_out" and (len(found) % 2 == 0)
        like = draw.random() if found else 1.0
        verb = found[0].verb if like < 0.12 else None
        noun = found[0].noun if 0.12 <= like < 0.24 else None
        name = name_of(draw, held_out, verb, noun)
        if name not in found:
            found.append(name)
    return found
