"""Real prompts for the real model: short passages, each with several tasks."""

PASSAGES = [
    "The lighthouse at Fenwick Point was built in 1854 after three ships were lost on the reef in "
    "one winter. Its lamp could be seen from eighteen miles away. The keeper climbed the one "
    "hundred and twelve steps every evening to light the lamp, and every morning to put it out.",
    "Honeybees tell each other where flowers are by dancing. A bee that has found food comes back "
    "to the hive and walks in a figure of eight. The angle of the walk shows the direction of the "
    "food, and the length of the walk shows the distance of the food.",
    "Our store opens at nine in the morning and closes at six in the evening. On Saturdays our "
    "store opens at ten and closes at four. Our store is closed on Sundays. Returns are accepted "
    "within thirty days if the customer brings the receipt.",
    "The council met on Tuesday to discuss the new bridge. The council heard from engineers, who "
    "said that the old bridge would last five more years. The council decided to build the new "
    "bridge next to the old bridge, and to close the old bridge when the new bridge is finished.",
    "To make the soup, chop two onions and three carrots. Fry the onions and the carrots in butter "
    "for ten minutes. Add one litre of water and simmer for half an hour. Season the soup with "
    "salt and pepper, and serve the soup with bread.",
    "Glaciers are rivers of ice. Snow falls on the mountain, and over many years the snow is "
    "pressed into ice. The ice flows slowly down the valley. Where the valley is warm enough, the "
    "ice melts, and a stream begins at the end of the glacier.",
    "Maria Lopez joined the company in 2011 as an analyst. In 2015 Maria Lopez became the head of "
    "research. In 2021 Maria Lopez was appointed chief executive officer. The company has offices "
    "in Madrid, Lisbon and Porto, and employs four hundred people.",
    "The printing press changed how knowledge travelled. Before the printing press, books were "
    "copied by hand, and a single book could take a year. After the printing press, a workshop "
    "could make hundreds of books in a month, and books became cheap.",
    "def area(width, height):\n    return width * height\n\n"
    "def perimeter(width, height):\n    return 2 * (width + height)\n\n"
    "def diagonal(width, height):\n    return (width ** 2 + height ** 2) ** 0.5\n",
    "name: build\non: push\njobs:\n  test:\n    runs-on: linux\n    steps:\n      - name: install\n"
    "        run: make install\n      - name: test\n        run: make test\n      - name: lint\n"
    "        run: make lint\n",
    "The train from Oslo to Bergen takes about seven hours. The train climbs from the sea to a "
    "height of more than twelve hundred metres. From the window passengers see forests, lakes and "
    "snow, even in summer. Many people say that it is the most beautiful train journey in Europe.",
]
TASKS = [
    "Repeat the following text exactly, word for word:\n\n{}",
    "Summarize the following text in two sentences:\n\n{}",
    "{}\n\nWhat is this text about? Use words of the text in your answer.",
    "Write a list of five points about the following text:\n\n{}",
]
# Neighbours differ in task and passage, so that any first few are of several kinds.
PROMPTS = [
    TASKS[(i + j) % len(TASKS)].format(passage)
    for j in range(len(TASKS))
    for i, passage in enumerate(PASSAGES)
]
