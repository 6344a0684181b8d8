"""Inheritance, properties, slots, metaclasses, descriptors, abstract classes."""

import abc
import types


class Meta(type):
    def __new__(cls, name, bases, body, **options):
        made = super().__new__(cls, name, bases, body)
        made.options = options
        return made


class Base(metaclass=Meta, shade="dark"):
    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__()
        print("subclass", cls.__qualname__, kwargs)

    def who(self):
        return "base"


class Left(Base):
    def who(self):
        return "left " + super().who()


class Right(Base):
    def who(self):
        return "right " + super().who()


class Both(Left, Right):
    __slots__ = ("_x",)

    @property
    def x(self):
        return self._x

    @x.setter
    def x(self, value):
        self._x = value

    @staticmethod
    def still():
        return "static"

    @classmethod
    def named(cls):
        return cls.__name__


# %%
class Named:
    def __set_name__(self, owner, name):
        print("named", owner.__name__, name)

    def __get__(self, instance, owner):
        return (instance is None, owner.__name__)


class Holder:
    field = Named()


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...


# %%
both = Both()
both.x = 4
print(both.who(), both.x, Both.still(), Both.named(), Base.options, Both.options)
print([one.__name__ for one in Both.__mro__], Both.__module__, type(Both).__name__)
print(Holder.field, Holder().field)
try:
    Shape()
except TypeError as error:
    print(error)
Square = types.new_class("Square", (Shape,), {}, lambda body: body.update(area=lambda self: 9))
print(Square().area(), isinstance(Square(), Shape), Square.__module__)
try:
    both.nothing = Both.nothing
except AttributeError as error:
    print(error)
