# SPDX-License-Identifier: Apache-2.0
import csv
import sys

rows = [(float(a), float(b)) for a, b in csv.reader(open(sys.argv[1]))]
w = 0.0
print("step,loss")
for step in range(10):
    print(f"{step},{sum((w * a - b) ** 2 for a, b in rows)}")
    w -= 0.01 * sum(2 * a * (w * a - b) for a, b in rows)
