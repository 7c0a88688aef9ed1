"""Word lists, and the things drawn from them: people, places, dates, prices."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.train.synth.dialogue import Draw, is_held_out


def split(text: str, between: str = " ") -> tuple[str, ...]:
    """Words of a text."""
    return tuple(text.split(between))


FEMALE = split(
    "Anna Maria Sofia Emma Olivia Clara Nina Laura Julia Alice Ruth Helen Grace Lucy Ella Mia Zoe Ivy Nora "
    "Rosa Elena Hannah Leah Sarah Rachel Priya Aisha Fatima Mei Yuki Hana Ingrid Astrid Freya Greta Heidi "
    "Chloe Camille Juliette Bianca Carla Diana Eva Flora Gina Holly Irene Jane Kate Linda Monica Naomi Paula "
    "Amara Zara Leila Samira Tara Wendy Vera Tessa Stella Selma Rita Pia Olga Nadia Molly Mabel Lena"
)
MALE = split(
    "Tom Ben Max Leo Paul Peter Mark Luke John James Henry Oscar Hugo Felix Simon Adam David Daniel Samuel "
    "Jacob Noah Liam Ethan Omar Ali Hassan Ravi Arjun Kenji Hiro Chen Wei Lars Erik Nils Sven Otto Karl Hans "
    "Marco Luca Diego Pablo Carlos Juan Mateo Andre Louis Jean Victor Walter Frank George Ian Jack Kevin "
    "Martin Nick Oliver Patrick Quentin Robert Steven Tim Viktor William Yusuf Zack Bruno Caleb Derek"
)
LAST = split(
    "Smith Jones Brown Taylor Wilson Davies Evans Thomas Johnson Roberts Walker Wright Thompson White Hughes "
    "Green Hall Wood Harris Martin Jackson Clarke Lewis Scott Young Baker Carter Cooper Ward Turner Parker "
    "Collins Bell Murphy Kelly Foster Gray Hill Ford Stone Lane Reed Fisher Hunter Mason Palmer Fox Webb "
    "Novak Kovac Horvat Rossi Ferrari Romano Silva Santos Costa Garcia Lopez Perez Torres Rivera Vega Cruz "
    "Dubois Moreau Laurent Petit Girard Weber Schmidt Fischer Keller Vogel Braun Lang Hansen Olsen Berg "
    "Lindqvist Nyman Virtanen Tanaka Sato Suzuki Kim Park Lee Wang Zhang Liu Patel Singh Sharma Khan Ahmed "
    "Okafor Mensah Adeyemi Diallo Haddad Nasser Cohen Levi Petrov Ivanov"
)
CITIES = split(
    "Paris London Berlin Madrid Rome Vienna Prague Oslo Stockholm Helsinki Dublin Lisbon Athens Warsaw "
    "Budapest Zurich Geneva Brussels Amsterdam Hamburg Munich Milan Naples Barcelona Porto Krakow Tokyo "
    "Osaka Kyoto Seoul Beijing Shanghai Delhi Mumbai Bangkok Singapore Sydney Melbourne Auckland "
    "Toronto Montreal Vancouver Boston Chicago Denver Seattle Houston Dallas Atlanta Miami Austin "
    "Portland Phoenix Cairo Lagos Nairobi Accra Lima Bogota Santiago Havana Quito"
)
COUNTRIES = (
    ("France", "Paris", "French"), ("Italy", "Rome", "Italian"), ("Spain", "Madrid", "Spanish"),
    ("Germany", "Berlin", "German"), ("Portugal", "Lisbon", "Portuguese"), ("Greece", "Athens", "Greek"),
    ("Norway", "Oslo", "Norwegian"), ("Sweden", "Stockholm", "Swedish"), ("Finland", "Helsinki", "Finnish"),
    ("Poland", "Warsaw", "Polish"), ("Hungary", "Budapest", "Hungarian"), ("Japan", "Tokyo", "Japanese"),
    ("Egypt", "Cairo", "Arabic"), ("Peru", "Lima", "Spanish"), ("Kenya", "Nairobi", "Swahili"),
    ("Thailand", "Bangkok", "Thai"), ("Turkey", "Ankara", "Turkish"), ("Russia", "Moscow", "Russian"),
    ("Valdoria", "Estmere", "Valdorian"), ("Kestria", "Portholm", "Kestrian"),
    ("Lunavia", "Mirrow", "Lunish"),
)  # fmt: skip
JOBS = split(
    "teacher doctor nurse engineer lawyer baker farmer pilot chef painter writer singer plumber electrician "
    "carpenter gardener dentist librarian journalist photographer designer architect chemist biologist "
    "programmer accountant waiter driver tailor mechanic banker historian translator sailor florist "
    "butcher actor judge editor musician"
)
THINGS = split(
    "apples oranges pears plums lemons books pens pencils marbles stickers stamps coins cards shells stones "
    "cookies muffins candies balloons buttons beads flowers roses tickets bottles boxes cups plates chairs "
    "toys dolls blocks balls bricks eggs carrots potatoes tomatoes peaches cherries grapes bananas notebooks "
    "magazines posters photos keys candles ribbons badges"
)
PRODUCTS = split(
    "lamp,desk,chair,backpack,umbrella,kettle,toaster,blender,keyboard,mouse,monitor,printer,camera,tripod,"
    "headset,speaker,phone case,water bottle,coffee mug,notebook,wallet,belt,jacket,sweater,raincoat,scarf,"
    "hat,pair of gloves,pair of boots,pair of sandals,tent,sleeping bag,bicycle,helmet,skateboard,guitar,"
    "violin,drum,piano stool,bookshelf,mirror,carpet,pillow,blanket,clock,watch,vase,garden hose,shovel,"
    "hammer,drill,saw,ladder,paint set,board game,puzzle,telescope,microscope",
    ",",
)
COMPANIES_A = split(
    "Blue North Silver Bright Green Stone River Summit Harbor Lumen Vertex Orion Nova Cedar Maple Falcon "
    "Atlas Delta Crystal Golden Iron Swift Pioneer Quantum Solar Arctic Coral Amber Zenith Beacon"
)
COMPANIES_B = split(
    "Systems Foods Motors Energy Logistics Software Media Labs Textiles Robotics Airways Bank Books Studios "
    "Networks Pharma Design Tools Travel Partners Works Analytics Farms"
)
MONTHS = split("January February March April May June July August September October November December")
DAYS = split("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
COLORS = split("red blue green yellow black white brown gray orange purple pink silver")
ANIMALS = (
    ("dog", 4), ("cat", 4), ("horse", 4), ("cow", 4), ("sheep", 4), ("goat", 4), ("pig", 4), ("rabbit", 4),
    ("chicken", 2), ("duck", 2), ("goose", 2), ("owl", 2), ("crow", 2), ("penguin", 2), ("parrot", 2),
    ("spider", 8), ("scorpion", 8), ("ant", 6), ("bee", 6), ("beetle", 6), ("butterfly", 6), ("crab", 10),
    ("snake", 0), ("fish", 0), ("snail", 0), ("lion", 4), ("tiger", 4), ("zebra", 4), ("fox", 4), ("wolf", 4),
)  # fmt: skip
ADJECTIVES = split(
    "quiet old small bright narrow heavy distant gentle strange golden broken warm cold silent clever"
)
NOUNS = split(
    "river garden window letter mountain forest bridge winter summer station market kitchen village candle "
    "harbor lantern island shadow mirror meadow castle orchard teacher doctor captain engine ladder basket "
    "pencil blanket cloud thunder feather button hammer ticket pepper butter cabbage banana kettle"
)


@dataclass(frozen=True, slots=True)
class Person:
    """A first and last name, with the pronouns that go with them."""

    first: str
    last: str
    he: str
    him: str
    his: str

    @property
    def full(self) -> str:
        """First and last name."""
        return f"{self.first} {self.last}"


def person(draw: Draw) -> Person:
    """Someone whose full name belongs to the draw's split: one in eight is held out."""
    while True:
        female = draw.chance(0.5)
        first, last = draw.pick(FEMALE if female else MALE), draw.pick(LAST)
        if is_held_out("person", first, last, one_in=8) == (draw.split == "held_out"):
            return Person(first, last, *(("she", "her", "her") if female else ("he", "him", "his")))


def people(draw: Draw, count: int) -> list[Person]:
    """People with different first names."""
    found: dict[str, Person] = {}
    while len(found) < count:
        someone = person(draw)
        found.setdefault(someone.first, someone)
    return list(found.values())


def first_names(draw: Draw, count: int) -> list[str]:
    """Different first names."""
    return draw.sample(FEMALE + MALE, count)


def company(draw: Draw) -> str:
    """A made-up company's name."""
    return f"{draw.pick(COMPANIES_A)} {draw.pick(COMPANIES_B)}"


def date(draw: Draw) -> str:
    """'March 5, 2024'."""
    return f"{draw.pick(MONTHS)} {draw.between(1, 28)}, {draw.between(1995, 2027)}"


def iso_date(draw: Draw) -> str:
    """'2024-03-05'."""
    return f"{draw.between(1995, 2027)}-{draw.between(1, 12):02}-{draw.between(1, 28):02}"


def clock(draw: Draw) -> str:
    """'14:30'."""
    return f"{draw.between(7, 21)}:{draw.pick(('00', '15', '30', '45'))}"


def price(draw: Draw) -> str:
    """'24.50', without a currency."""
    return f"{draw.between(2, 400)}.{draw.pick(('00', '50', '95', '99', '25', '40'))}"


def email(draw: Draw, someone: Person) -> str:
    """An address made of a name."""
    first, last = someone.first.lower(), someone.last.lower()
    box = draw.pick((f"{first}.{last}", f"{first}{last}", f"{first[0]}{last}", f"{last}.{first}"))
    host = draw.pick(("mail", "post", "example", "inbox", "office"))
    return f"{box}@{host}.{draw.pick(('com', 'org', 'net'))}"


def phone(draw: Draw) -> str:
    """'555-0142'."""
    return f"555-{draw.between(0, 9999):04}"


def code(draw: Draw) -> str:
    """An identifier such as 'AB-4821'."""
    letters = "ABCDEFGHKLMNPRSTXZ"
    return f"{draw.pick(letters)}{draw.pick(letters)}-{draw.between(100, 9999)}"
