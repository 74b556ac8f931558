"""The words of the corpus: few enough that nearly all of them are whole tokens in a vocabulary of 2,048."""

NAMES = (
    "Ada", "Ben", "Clara", "David", "Emma", "Finn", "Grace", "Hugo", "Ida", "Jonas", "Kim", "Lea", "Max", "Mira",
    "Noah", "Nora", "Olga", "Omar", "Paul", "Rosa", "Sam", "Tara", "Tom", "Uma", "Vera", "Will", "Yara", "Zoe",
)  # fmt: skip
CITIES = (
    "Athens", "Berlin", "Bern", "Cairo", "Dublin", "Geneva", "Lima", "Lisbon", "London", "Madrid", "Oslo", "Paris",
    "Prague", "Rome", "Tokyo", "Vienna", "Boston", "New York", "Sydney", "Zurich",
)  # fmt: skip
COLOURS = ("red", "blue", "green", "yellow", "orange", "purple", "black", "white", "brown", "pink", "grey")
ANIMALS = (
    "fox", "bear", "owl", "mouse", "duck", "cat", "dog", "frog", "rabbit", "turtle", "horse", "goat", "wolf", "bee",
    "snail", "crow",
)  # fmt: skip
FRUITS = ("apple", "pear", "plum", "cherry", "banana", "lemon", "orange", "peach", "melon", "grape")
THINGS = (
    "lantern", "key", "map", "bell", "rope", "book", "coin", "drum", "kite", "mirror", "button", "shell", "clock",
    "feather", "basket", "baton",
)  # fmt: skip
COUNTED = (
    "apples", "books", "coins", "stones", "shells", "eggs", "cards", "pears", "stamps", "marbles", "pencils", "cups",
    "plums", "tickets",
)  # fmt: skip
INSTRUMENTS = ("piano", "violin", "flute", "drum", "guitar", "trumpet", "harp", "cello")
PLANETS = ("Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
SEASONS = ("spring", "summer", "autumn", "winter")
VEGETABLES = ("carrot", "potato", "onion", "bean", "pea", "cabbage", "tomato", "leek")
TREES = ("oak", "pine", "birch", "maple", "willow", "beech", "elm", "ash")
NUMBERS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
)  # fmt: skip
GREETINGS = ("Hello", "Hi", "Good morning", "Hey", "Good evening", "Hello there", "Hi there", "hello", "hi")
