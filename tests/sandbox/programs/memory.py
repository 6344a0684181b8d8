"""Weak references, finalizers, the collector, and what reference counts promise."""

import gc
import sys
import weakref


class Node:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        print("gone", self.name)


node = Node("a")
reference = weakref.ref(node, lambda _: print("callback"))
weakref.finalize(node, print, "finalized")
print(reference() is node)
del node
print(reference())

# %%
one, other = Node("one"), Node("other")
one.other, other.other = other, one
table = weakref.WeakValueDictionary(one=one)
both = weakref.WeakSet([one, other])
del one, other
print(gc.isenabled(), len(table), len(both))
gc.collect()
print(len(table), len(both), gc.garbage)
proxied = Node("proxied")
proxy = weakref.proxy(proxied)
print(proxy.name, sys.getrefcount(proxied) < 5)
del proxied
try:
    proxy.name
except ReferenceError as error:
    print(error)
print(gc.get_threshold(), sys.intern("a b") is sys.intern("a b"))
gc.disable()
print(gc.isenabled())
gc.enable()
