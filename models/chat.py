"""Conversations of several turns with a system prompt, facts about the user, and questions in between.

The system prompt decides a name, a manner or the length of answers. The user states facts about themselves and asks for
them later. Every question in between is a talk of another kind."""

from collections.abc import Callable
from random import Random

from models import words
from models.about import SUBJECTS
from models.arithmetic import addition
from models.lists import lists
from models.talk import Kind, Split, Talk, Turn, belongs, often
from models.wordings import careless, explain

_NAMES = ("Pip", "Robin", "Max", "Nora", "Kim", "Baton", "Page", "Ticket")
_SYSTEMS = (
    "You are a helpful assistant.", "You are Baton's guide.", "You are a friendly assistant.",
    "You answer questions about Baton.", "Be kind and brief.", "You help people who try Baton.",
    "Answer the user's questions.", "You are a teacher.",
)  # fmt: skip
_BRIEF = ("Answer in one sentence.", "You answer in one sentence.", "Be brief.", "Keep your answers short.")
_CLOSINGS = ("Aye!", "Over.", "Have a nice day!", "Good luck!", "That is all.")
_FACTS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], str, str]] = {
    "name": (
        ("My name is {}.", "I am {}.", "I'm {}.", "Hello, I am {}.", "Hi, my name is {}.", "You can call me {}."),
        ("What is my name?", "Who am I?", "Do you remember my name?", "What was my name?", "What's my name?"),
        words.NAMES,
        "Hello {}! How can I help you?",
        "Your name is {}.",
    ),
    "colour": (
        ("My favourite colour is {}.", "I like {} best.", "I love the colour {}."),
        ("What is my favourite colour?", "Which colour do I like?"),
        words.COLOURS,
        "Nice, {} is a fine colour.",
        "Your favourite colour is {}.",
    ),
    "city": (
        ("I live in {}.", "I am from {}.", "My home is {}."),
        ("Where do I live?", "Where am I from?", "Which city is my home?"),
        words.CITIES,
        "I have heard good things about {}.",
        "You live in {}.",
    ),
    "animal": (
        ("I have a {}.", "My pet is a {}.", "At home I have a {}."),
        ("Which pet do I have?", "What is my pet?", "Which animal do I have?"),
        words.ANIMALS,
        "A {} is good company.",
        "You have a {}.",
    ),
    "number": (
        ("My lucky number is {}.", "Remember the number {}.", "Keep the number {} in mind."),
        ("What is my number?", "Which number did I tell you?", "What was the number?"),
        tuple(str(number) for number in range(2, 100)),
        "I will remember {}.",
        "Your number is {}.",
    ),
}
_SMALL = (
    (tuple(words.GREETINGS), "Hello! How can I help you?"),
    (("Thanks!", "Thank you.", "Thanks a lot.", "thanks", "Thank you very much!"), "You are welcome!"),
    (("How are you?", "How do you do?", "Are you well?"), "I am well, all my pages are in order. And you?"),
    (("Bye!", "Goodbye.", "See you.", "bye", "Good night."), "Goodbye!"),
    (("Okay.", "I see.", "Good.", "Nice.", "Great!", "ok", "Yes."), "Is there anything else you want to know?"),
    (("No.", "No, thanks.", "That is all."), "Then have a good day!"),
)
_UNKNOWN = (
    "What is the capital of France?", "Who wrote Hamlet?", "Write a program in Python.", "How tall is Mount Everest?",
    "What is love?", "Who is the president?", "Translate hello into French.", "What is quantum physics?",
    "Why is the sky blue?", "How do I cook rice?", "Who won the game?", "What is the meaning of life?",
    "Write an essay about history.", "What is the fastest car?", "How old is the universe?", "Can you drive a car?",
    "What is the news today?", "Solve this riddle.", "Who is Napoleon?", "What is a computer?",
    "What is the best movie?", "How far away is the moon?", "Sing a song.", "What is the weather in Paris?",
    "What time is it?", "How is the weather in Rome?", "What is the weather today?",
)  # fmt: skip
_SORRY = "I do not know that. I am a small model: ask me about Baton, small sums, lists, stories or JSON."

Answered = tuple[str, str]


def chat(rng: Random, part: Split) -> Talk:
    while True:
        talk = _chat(rng)
        if belongs(talk, part):
            return talk


def _chat(rng: Random) -> Talk:
    turns: list[Turn] = []
    name = brief = closing = ""
    match rng.choices(range(5), (25, 35, 15, 13, 12))[0]:
        case 1:
            turns.append(Turn("system", rng.choice(_SYSTEMS)))
        case 2:
            brief = rng.choice(_BRIEF)
            turns.append(Turn("system", often(rng, (brief, f"{rng.choice(_SYSTEMS)} {brief}"))))
        case 3:
            name = rng.choice(_NAMES)
            turns.append(Turn("system", rng.choice(("Your name is {}.", "You are called {}.")).format(name)))
        case 4:
            closing = rng.choice(_CLOSINGS)
            turns.append(
                Turn("system", rng.choice(("End every answer with: {}", "Always finish with: {}")).format(closing))
            )
    told: dict[str, str] = {}
    answer = ""
    for _ in range(rng.choices((1, 2, 3, 4, 6), (10, 15, 50, 15, 10))[0]):
        question, answer = exchange(rng, told, name=name, brief=bool(brief), before=answer)
        turns.append(Turn("user", question))
        turns.append(Turn("assistant", f"{answer} {closing}" if closing else answer))
    return Talk(Kind.CHAT, tuple(turns))


def exchange(
    rng: Random, told: dict[str, str], *, name: str = "", brief: bool = False, before: str = "", unknown: bool = True
) -> Answered:
    """One question and its answer. `told` are the facts that the user has stated so far. `unknown`: the question may be
    one that only a tool could answer."""
    if name and rng.random() < 0.4:
        forms = ("What is your name?", "Who are you?", "What are you called?", "Your name?")
        return careless(rng, rng.choice(forms)), f"My name is {name}."
    if before and rng.random() < 0.06:
        return rng.choice(("Say that again.", "Again, please.", "Please repeat that.", "Can you repeat that?")), before
    makers: tuple[Callable[[], Answered], ...] = (
        lambda: _tell(rng, told),
        lambda: _recall(rng, told),
        lambda: _explained(rng, brief),
        lambda: _inner(addition(rng, Split.TRAINED)),
        lambda: _inner(lists(rng, Split.TRAINED)),
        lambda: _small(rng),
        lambda: (careless(rng, rng.choice(_UNKNOWN)), _SORRY),
    )
    return rng.choices(makers, (18, 25 if told else 4, 27, 10, 8, 9, 5 if unknown else 0))[0]()


def _tell(rng: Random, told: dict[str, str]) -> Answered:
    fact = rng.choice(list(_FACTS))
    forms, _, values, reply, _ = _FACTS[fact]
    told[fact] = rng.choice(values)
    return rng.choice(forms).format(told[fact]), reply.format(told[fact])


def _recall(rng: Random, told: dict[str, str]) -> Answered:
    if told and rng.random() < 0.92:
        fact = rng.choice(list(told))
        return careless(rng, rng.choice(_FACTS[fact][1])), _FACTS[fact][4].format(told[fact])
    unknown = [fact for fact in _FACTS if fact not in told]
    if not unknown:
        return _recall(rng, told)
    return careless(rng, rng.choice(_FACTS[rng.choice(unknown)][1])), "You have not told me yet."


def _explained(rng: Random, brief: bool) -> Answered:
    if rng.random() < 0.25:
        subject = rng.choice([one for one in SUBJECTS if one.names])
        form = rng.choice(("And {}?", "And what is {}?", "What about {}?", "And what does {} mean?"))
        return form.format(rng.choice(subject.names)), subject.short if brief else subject.answer
    return _inner(explain(rng, Split.TRAINED, brief=brief))


def _small(rng: Random) -> Answered:
    questions, answer = rng.choice(_SMALL)
    return rng.choice(questions), answer


def _inner(talk: Talk) -> Answered:
    return talk.turns[0].content, talk.turns[1].content
