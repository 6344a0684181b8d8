"""numpy: linear algebra, transforms, random numbers, files, structured and masked arrays."""

import io
import pickle

import numpy as np

np.set_printoptions(precision=6, suppress=True)
matrix = np.array([[4.0, 1, 2], [1, 3, 0], [2, 0, 5]])
values, vectors = np.linalg.eigh(matrix)
print(values, np.allclose(vectors @ np.diag(values) @ vectors.T, matrix), np.linalg.det(matrix))
print(np.linalg.solve(matrix, [1, 2, 3]), np.linalg.norm(np.linalg.inv(matrix)))
print(np.linalg.svd(matrix)[1], np.linalg.qr(matrix)[1].shape, np.linalg.matrix_rank(matrix))
big = np.random.default_rng(0).random((300, 300))
print(np.allclose(np.linalg.inv(big) @ big, np.eye(300)), (big @ big).shape, np.einsum("ij->", big))

# %%
signal = np.sin(2 * np.pi * 5 * np.arange(128) / 128)
print(np.abs(np.fft.rfft(signal)).argmax(), np.allclose(np.fft.ifft(np.fft.fft(signal)), signal))
np.random.seed(42)
print(np.random.rand(3), np.random.randint(0, 10, 5), np.random.permutation(5))
print(np.random.default_rng(7).normal(size=3), np.random.Generator(np.random.PCG64(1)).integers(9))

# %%
mapped = np.memmap("mapped.dat", dtype="f4", mode="w+", shape=(100, 10))
mapped[:] = np.arange(1000).reshape(100, 10)
mapped.flush()
del mapped
print(
    np.memmap("mapped.dat", dtype="f4", mode="r", shape=(100, 10))[99],
    np.fromfile("mapped.dat", "f4").sum(),
)
np.savez_compressed("arrays.npz", a=matrix, b=np.arange(3))
with np.load("arrays.npz") as loaded:
    print(sorted(loaded), loaded["b"])
np.save("one.npy", matrix)
print(np.load("one.npy", mmap_mode="r")[0], pickle.loads(pickle.dumps(matrix)).tolist())
np.savetxt("text.csv", matrix, delimiter=",", fmt="%.1f")
print(np.loadtxt("text.csv", delimiter=",").sum(), np.genfromtxt(io.StringIO("1 2\n3 4")))

# %%
people = np.array([("Ann", 31), ("Bob", 25)], dtype=[("name", "U10"), ("age", "i4")])
print(np.sort(people, order="age"), people["age"].mean(), people.dtype)
print(np.ma.masked_less([1, 5, 3], 3), np.datetime64("2024-02-29") + np.timedelta64(1, "D"))
print(np.unique([3, 1, 3], return_counts=True), np.histogram([1, 2, 2, 9], bins=3))
with np.errstate(divide="ignore"):
    print(np.array([1.0, -1.0]) / 0)
print(np.add.reduce(np.ones((2, 3), "i8"), axis=0), np.vectorize(lambda n: n + 1)([1, 2]))
print(np.array([1.0]) / 0)
matrix @ np.ones(4)
