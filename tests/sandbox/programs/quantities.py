"""Numbers, text and time: exact arithmetic, dates in zones, patterns, seeds, characters."""

import calendar
import cmath
import datetime
import decimal
import fractions
import hashlib
import heapq
import itertools
import locale
import math
import random
import re
import secrets
import statistics
import string
import struct
import textwrap
import time
import unicodedata
import uuid
import zlib
import zoneinfo
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque

with decimal.localcontext() as context:
    context.prec = 50
    print(decimal.Decimal(2).sqrt(), decimal.Decimal("0.1") + decimal.Decimal("0.2"))
print(fractions.Fraction(3, 4) ** 3, fractions.Fraction("0.125"), 10**30 // 7, -7 % 3, 2**0.5)
print(statistics.stdev([1, 2, 3, 4]), statistics.median([3, 1, 2]), statistics.quantiles(range(9)))
print(math.isclose(cmath.exp(1j * math.pi).real, -1), math.comb(50, 25), math.fsum([0.1] * 10))

# %%
zurich, new_york = zoneinfo.ZoneInfo("Europe/Zurich"), zoneinfo.ZoneInfo("America/New_York")
noon = datetime.datetime(2024, 3, 31, 0, 30, tzinfo=zurich)
print(noon + datetime.timedelta(hours=3), noon.astimezone(new_york).isoformat(), noon.utcoffset())
print(datetime.date(2024, 2, 29).strftime("%A %d %B %Y"), calendar.isleap(1900), noon.tzname())
print(datetime.datetime.strptime("2024-01-02 03:04", "%Y-%m-%d %H:%M"), time.gmtime(0).tm_year)
print(len(zoneinfo.available_timezones()) > 400, time.tzname, datetime.datetime.fromtimestamp(0))

# %%
pattern = re.compile(r"(?P<user>[\w.]+)@(?P<host>\w+)\.(?:com|org)", re.IGNORECASE)
print(pattern.sub(r"\g<host>:\g<user>", "write to Ann.B@site.org!"), pattern.flags)
print([m.span() for m in re.finditer(r"(?<!a)b+", "abb bbb")], re.split(r"(,)\s*", "a, b,c"))
random.seed(1234)
print(random.random(), random.sample(range(100), 5), random.gauss(0, 1), random.getrandbits(70))
print(random.Random("text").choices("abc", k=5), len(secrets.token_hex(8)), len(uuid.uuid4().hex))
state = random.getstate()
first = random.random()
random.setstate(state)
print(first == random.random(), random.SystemRandom().random() < 1)
print(
    hashlib.sha256(b"x").hexdigest()[:16], hashlib.blake2b(b"x").hexdigest()[:16], zlib.crc32(b"x")
)
print(hash("text") == hash("text"), {"b", "a", "c"}, struct.pack("<hqd", 1, 2, 3.5))

# %%
print(
    Counter("mississippi").most_common(2), deque(range(5), 3), OrderedDict(a=1), [*ChainMap({1: 2})]
)
table = defaultdict(list)
for word in "apple avocado banana".split():
    table[word[0]].append(word)
print(dict(table), list(itertools.batched("abcde", 2) if hasattr(itertools, "batched") else []))
print([*itertools.accumulate(range(5))], [*itertools.pairwise("abc")], heapq.nlargest(2, [3, 9, 4]))
print([(key, len(list(group))) for key, group in itertools.groupby("aabccc")])
print(unicodedata.normalize("NFKD", "ﬁé"), unicodedata.name("→"), "straße".upper(), "İ".lower())
print(textwrap.fill("many words that are to be folded", 12), string.Template("$a").substitute(a=1))
print(locale.getlocale(), locale.getpreferredencoding(), f"{1234567.891:,.2f} {255:#x} {'x':^5}|")
print(f"{math.pi!r:>20} {'é'.encode()} {b'abc'.hex(':')}", "%05.1f|%-4s|" % (3.14159, "x"))
match {"kind": "point", "at": (1, 2)}:
    case {"kind": "point", "at": (x, y)} if x < y:
        print("matched", x, y)
