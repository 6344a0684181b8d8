"""Classes, instances and functions of the program itself, pickled and copied."""

import copy
import pickle
import reprlib


class Tree:
    def __init__(self, *children):
        self.children = list(children)
        self.parent = None
        for child in children:
            child.parent = self

    def __eq__(self, other):
        return type(other) is Tree and self.children == other.children

    __hash__ = None

    @reprlib.recursive_repr()
    def __repr__(self):
        return f"Tree({', '.join(map(repr, self.children))})"


class Slotted:
    __slots__ = ("value",)


class Reduced:
    def __reduce__(self):
        return (make, (1, 2))


def make(*args):
    return ["made", *args]


class Outer:
    class Inner:
        pass


# %%
tree = Tree(Tree(), Tree(Tree()))
for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
    again = pickle.loads(pickle.dumps(tree, protocol))
    print(protocol, again, again == tree, again.children[1].parent is again)
slotted = Slotted()
slotted.value = tree
print(pickle.loads(pickle.dumps(slotted)).value, pickle.loads(pickle.dumps(Reduced())))
print(pickle.loads(pickle.dumps(make)) is make, pickle.loads(pickle.dumps(Outer.Inner)))
print(pickle.dumps(Outer, 0), Tree.__module__)
with open("tree.pickle", "wb") as file:
    pickle.dump(tree, file)

# %%
with open("tree.pickle", "rb") as file:
    print(pickle.load(file) == tree)
shallow, deep = copy.copy(tree), copy.deepcopy(tree)
print(shallow.children is tree.children, deep.children[1].parent is deep, deep == tree)
for unfit in (lambda: 0, (n for n in "a"), open("tree.pickle", "rb")):
    try:
        pickle.dumps(unfit)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        print(type(error).__name__, str(error).split(" at ")[0])
