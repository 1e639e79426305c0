"""The real half of the default model's corpus: chitchat-dataset (MIT) as clean two-party chats.

The source is unmoderated chat between students, so it is used in parts. A sentence goes if it holds profanity, a
sensitive subject, a name that may be a person's, a longer number, or a word that is rare in the whole set; a turn that
loses more than half of its sentences cuts the conversation there. What is left is written in one even way (capitals,
apostrophes, end marks), so that a very small model spends nothing on spelling habits.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

Turns = list[str]


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


CONTRACTIONS = dict(
    pair.split("=")
    for pair in word_set(
        """
        im=I'm ive=I've id=I'd dont=don't cant=can't wont=won't didnt=didn't doesnt=doesn't isnt=isn't wasnt=wasn't
        arent=aren't wouldnt=wouldn't couldnt=couldn't shouldnt=shouldn't havent=haven't hasnt=hasn't hadnt=hadn't
        werent=weren't aint=ain't thats=that's whats=what's theres=there's wheres=where's heres=here's youre=you're
        theyre=they're youve=you've theyve=they've weve=we've hes=he's shes=she's itll=it'll youll=you'll youd=you'd
        theyd=they'd hows=how's lets=let's u=you ur=your r=are ya=you yea=yeah ok=okay idk=I_don't_know tho=though
        cuz=because cause=because thx=thanks pls=please plz=please ppl=people bc=because tbh=honestly btw=by_the_way
        omg=wow lol=haha lmao=haha rn=right_now wanna=want_to gonna=going_to gotta=have_to kinda=kind_of
        sorta=sort_of alot=a_lot em=them til=until
        """
    )
)

# A sentence with any of these words is dropped. Whole words, lower case.
UNWANTED = word_set(
    """
    fuck fucking fucked shit shitty bullshit bitch bitches ass asses asshole damn dammit goddamn hell crap crappy
    piss pissed bastard dick cock pussy cunt whore slut hoe boobs boob tits penis vagina sex sexual sexy sexually
    porn nude nudes naked rape raped horny kinky virgin condom gay lesbian homo homosexual trans transgender queer
    fag faggot retard retarded nigga nigger racist racism rapist molest incest bisexual lgbt lgbtq feminist
    feminism sexist nazi nazis hitler holocaust terrorist terrorists terrorism isis bomb bombs bombing nuke nukes
    nuclear gun guns rifle shoot shooting shot shooter shooters kill kills killed killing killer murder murdered
    murderer suicide suicidal dead die dies died dying death deaths stab stabbed blood bloody drunk drugs drug
    weed marijuana cocaine heroin meth vape vaping cigarettes smoke smoking alcohol alcoholic beer vodka wine
    trump obama hillary clinton democrat democrats republican republicans liberal liberals conservative politics
    political abortion immigrants immigrant immigration refugee refugees war wars military army god gods jesus
    christ lord pray prayer prayers bible church churches mormon mormons lds mission missions missionary
    missionaries temple bishop prophet prophets gospel religion religious faith heaven satan devil atheist muslim
    islam jew jews jewish catholic baptized sacrament byu provo utah uvu ward murica depression depressed anxiety
    cancer disease pregnant divorce divorced dating flirt flirting kiss kissed virgins fat ugly idiot idiots moron
    loser creepy creep creeper freak sucks suck sucked sucky screw screwed poop pee fart butt vomit puke diarrhea
    toilet yeet address instagram snapchat facebook twitter venmo email gmail tinder dawg homeslice boi scriptures
    testimony pdbio zybooks tucanos chit prompt prompts leaderboard ipad ipads bot bots server servers sender fam
    bruh yo waht wel noo goodnes liek
    """
)

# Names that may stay; any other word mostly written with a capital may be a person's name, and its sentence is dropped.
NAMES = word_set(
    """
    monday tuesday wednesday thursday friday saturday sunday january february march april june july august
    september october november december christmas halloween thanksgiving easter english spanish french german
    chinese japanese korean italian russian portuguese american mexican british america europe asia africa canada
    mexico china japan korea france spain italy germany england london paris brazil australia india ireland hawaii
    alaska texas california florida arizona colorado oregon washington idaho new york chicago seattle disney
    disneyland marvel netflix youtube google apple harry potter hogwarts spotify mac windows android star avengers
    lego mario pokemon nintendo minecraft tv usa uk
    """
)

# Words that open sentences so often that their capital says nothing.
HARMLESS = word_set("i i'm i'd i'll i've ok okay haha hey hi hello yeah yes no oh wow well so but and the what how do")

ASKS = re.compile(
    r"^(and |but |so |oh |well |haha |hey |hi |hello )?(what|how|why|who|where|when|which|do|does|did|are|is|was|were|"
    r"have|has|can|could|would|will|should|what's|how's|isn't|don't|doesn't|didn't|aren't|any)\b"
)
ITS = re.compile(r"\bits (?=(?:a|an|so|not|just|the|been|really|like|very|pretty|good|fun|all|way|too|okay|hard)\b)")
ALLOWED = re.compile(r"[A-Za-z0-9 ,.?!'$%&-]+")
WORD = re.compile(r"[a-z]+(?:'[a-z]+)?")


def conversations(path: Path) -> Iterator[tuple[str, list[list[str]]]]:
    """(id, turns) of each two-party conversation in `dataset.json`, each turn a list of messages."""
    for key, value in json.loads(Path(path).read_text(encoding="utf-8")).items():
        turns = value["messages"]
        if len({message["sender"] for turn in turns for message in turn}) == 2:
            yield key, [[message["text"] for message in turn] for turn in turns]


def tidy(message: str) -> str:
    """One message in an even spelling, lower case, with an end mark; '' if nothing or an odd character is left."""
    text = message.replace("\u2019", "'").replace('"', "").lower().strip()
    text = re.sub(r"[:;=][-']?[()dp/|]+|<3|\bx+d+\b|\^_*\^|[()*~]", " ", text)
    text = re.sub(r"\b(?:a?ha){1,}h?\b|\bhe(?:he)+\b|\b(?:lo)+l+\b|\blmf?ao+\b", "haha", text)
    text = re.sub(r"([a-z])\1{2,}", r"\1", text)
    text = re.sub(r"\.{2,}|[:;]", ",", text)
    text = re.sub(r"[?!.]*\?[?!.]*", "?", text)
    text = re.sub(r"[!.]*![!.]*", "!", text)
    text = WORD.sub(lambda m: CONTRACTIONS.get(m[0], m[0]).replace("_", " "), text)
    text = ITS.sub("it's ", text)
    text = re.sub(r"\bhaha(?: haha)+", "haha", text)
    text = re.sub(r"\s+", " ", re.sub(r"\s*([,.?!])(?=\D|$)", r"\1 ", text)).strip(" ,-'&")
    text = re.sub(r"([,.?!])(?: *,)+", r"\1", text)
    if not text or not ALLOWED.fullmatch(text):
        return ""
    if text[-1] not in ".?!":
        text = text.rstrip(",") + ("?" if ASKS.match(text) else ".")
    return text


def proper_nouns(chats: list[list[list[str]]]) -> dict[str, str]:
    """Words that are mostly written with a capital inside a sentence (lower case → usual form)."""
    small, large = Counter(), Counter()
    for message in (m for turns in chats for turn in turns for m in turn):
        for word in re.findall(r"(?<=[a-z,] )[A-Za-z]+", message):
            if word.islower():
                small[word] += 1
            else:
                large[word.lower()] += 1
    forms = {word for word, count in large.items() if count >= 2 and count > small[word]}
    return {word: word.capitalize() for word in (forms - HARMLESS) | NAMES}


def acceptable(sentence: str, common: set[str], proper: dict[str, str]) -> bool:
    """Whether a tidied sentence may be trained on (see the module's text)."""
    words = WORD.findall(sentence)
    return (
        0 < len(words) <= 30
        and all(word in common and word.split("'")[0] not in UNWANTED for word in words)
        and not any(word in proper and word not in NAMES for word in words)
        and not re.search(r"\d{3,}|\d[-.]\d|\.[a-z]", sentence)
    )


def select(turn: str, common: set[str], proper: dict[str, str]) -> str:
    """The acceptable sentences of `turn`, at most 45 words of them; '' if more than half had to go."""
    sentences = [s for s in re.split(r"(?<=[.?!]) ", turn) if s]
    kept = [s for s in sentences if acceptable(s, common, proper)]
    while sum(len(s.split()) for s in kept) > 45:
        kept.pop()
    return " ".join(kept) if 2 * len(kept) >= len(sentences) else ""


def present(turn: str, proper: dict[str, str]) -> str:
    """`turn` with capitals: sentence starts, the pronoun I, and the names that may stay."""
    turn = re.sub(r"[a-z]+", lambda m: proper.get(m[0], m[0]) if m[0] in NAMES else m[0], turn)
    turn = re.sub(r"\bi\b", "I", turn)
    turn = re.sub(r"\bTv\b|\btv\b", "TV", turn)
    return re.sub(r"(^|[.!?] )([a-z])", lambda m: m[1] + m[2].upper(), turn)


def load(path: Path, rare: int = 8) -> list[tuple[str, Turns]]:
    """Clean pieces of conversations of two turns or more, each with its conversation's id.

    A word seen fewer than `rare` times in the whole set counts as rare.
    """
    raw = list(conversations(path))
    proper = proper_nouns([turns for _, turns in raw])
    tidied = [(key, [" ".join(filter(None, map(tidy, turn))) for turn in turns]) for key, turns in raw]
    counts = Counter(word for _, turns in tidied for turn in turns for word in WORD.findall(turn))
    common = {word for word, count in counts.items() if count >= rare}
    pieces = []
    for key, turns in tidied:
        piece: Turns = []
        for turn in [*turns, ""]:
            if kept := select(turn, common, proper):
                piece.append(present(kept, proper))
            else:
                if len(piece) >= 2:
                    pieces.append((key, piece))
                piece = []
    return pieces
