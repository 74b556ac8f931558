"""Many wordings of one question, so that an answer depends on the meaning of a question and not on its words.

A wording is a frame around a name, a scope such as "in plain words", something polite before it and small carelessness
in case and punctuation. Five wordings of the demo's question are named here and never trained."""

from random import Random

from models.about import BATON, SUBJECTS, Subject
from models.talk import Kind, Split, Talk, ask, belongs, often

HELD_WORDINGS = (
    "Can you tell me what Baton is?",
    "I keep hearing about Baton. What is it?",
    "Describe Baton for a newcomer.",
    "So what exactly is this Baton thing?",
    "Give me the short version: what is Baton?",
)
_ASKED = (
    "What is {}",
    "What's {}",
    "What exactly is {}",
    "What does {} mean",
    "What do you mean by {}",
    "What on earth is {}",
)
_ASKED_ALSO = ("Could you explain {}", "Can you explain {}", "Do you know what {} is", "Would you explain {} to me")
_ASKED_LESS = (
    "Can you describe {}",
    "How would you explain {}",
    "How would you describe {}",
    "What should I know about {}",
)
_TOLD = ("Explain {}", "Tell me about {}", "Tell me what {} is", "Describe {}", "Define {}", "Help me understand {}")
_TOLD_ALSO = (
    "I want to know what {} is",
    "I do not understand {}",
    "I would like to know what {} is",
    "Please explain {}",
)
_TOLD_LESS = (
    "Give me an explanation of {}",
    "Explain to me what {} is",
    "I have never heard of {}",
    "I read about {}. What is it",
)
_ASIDE = ("", " in plain words", " in simple words", " to a beginner", " to a friend", " please", ", please", " for me")
_BRIEF = (" in one sentence", " in short", " briefly", " in a few words", " in a nutshell", " in one line")
_BEFORE = (
    "", "Hi! ", "Hello. ", "Please: ", "Quick question: ", "I am new here. ", "Sorry, ", "Hey, ", "Okay. ", "So, ",
    "Now ", "One more thing: ", "Tell me, ", "Good morning! ", "I wonder: ", "And ", "Just curious: ", "Help me: ",
)  # fmt: skip
_BRIEF_BEFORE = ("In one sentence: ", "In short: ", "Briefly: ", "Keep it short. ", "Short answer, please: ")
_AFTER = ("", " Thanks!", " Thank you.", " I am curious.", " I am new to this.", " Explain it simply.")
_NEWCOMERS = (
    " to a newcomer",
    " for a beginner",
    " for someone new",
    " to my grandmother",
    " to a child",
    " for my team",
)


def explain(rng: Random, part: Split, *, brief: bool = False) -> Talk:
    """`brief`: the system prompt wants a brief answer."""
    while True:
        subject = BATON if rng.random() < 0.3 else rng.choice(SUBJECTS)
        question, asks_brief = wording(rng, subject)
        talk = ask(Kind.EXPLAIN, question, subject.short if brief or asks_brief else subject.answer)
        if belongs(talk, part) and plain(question) not in _HELD:
            return talk


def wording(rng: Random, subject: Subject) -> tuple[str, bool]:
    """A wording of the question, and whether it wants a brief answer."""
    if subject.questions and (not subject.names or rng.random() < 0.4):
        question, brief = rng.choice(subject.questions), False
    else:
        question, brief = _framed(rng, rng.choice(subject.names) if rng.random() < 0.5 else subject.names[0])
    if rng.random() < 0.3:
        before = often(rng, (_BEFORE, _BRIEF_BEFORE), 0.85)
        brief = brief or before is _BRIEF_BEFORE
        question = _joined(rng.choice(before), question)
    if rng.random() < 0.1:
        question += rng.choice(_AFTER)
    return careless(rng, question), brief


def careless(rng: Random, question: str) -> str:
    if rng.random() < 0.15:
        question = question.rstrip("?.")
    if rng.random() < 0.12:
        question = question[0].lower() + question[1:]
    if rng.random() < 0.04:
        question = question.lower()
    return question


def plain(question: str) -> str:
    """The text without case and punctuation: a held-out wording is held out in every spelling."""
    return " ".join("".join(letter for letter in question.lower() if letter.isalnum() or letter == " ").split())


_HELD = frozenset(plain(wording) for wording in HELD_WORDINGS)


def _framed(rng: Random, name: str) -> tuple[str, bool]:
    frames = rng.choice((_ASKED, _ASKED, _ASKED_ALSO, _ASKED_LESS, _TOLD, _TOLD_ALSO, _TOLD_LESS))
    frame = often(rng, frames, 0.35)
    scope, brief = "", False
    match rng.randrange(10):
        case 0 | 1 | 2:
            scope = rng.choice(_ASIDE)
        case 3 | 4:
            scope, brief = rng.choice(_BRIEF), True
        case 5 if "xplain" in frame or "escribe" in frame:
            scope = rng.choice(_NEWCOMERS)
    asks = frames in (_ASKED, _ASKED_ALSO, _ASKED_LESS) or frame.endswith("What is it")
    text = frame.format(name) + scope + ("?" if asks else ".")
    return text[0].upper() + text[1:], brief


def _joined(before: str, question: str) -> str:
    if before.endswith((", ", "And ", "Now ")) and not question.startswith(("I ", "Baton", "Commit", "KV")):
        question = question[0].lower() + question[1:]
    return before + question
