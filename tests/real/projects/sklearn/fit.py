# SPDX-License-Identifier: Apache-2.0
import json

import joblib
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

x, y = load_digits(return_X_y=True)
x, x_test, y, y_test = train_test_split(x / 16, y, random_state=0)
model = LogisticRegression(max_iter=200).fit(x, y)
joblib.dump(model, "model.joblib", compress=3)
with open("metrics.json", "w") as f:
    json.dump({"accuracy": model.score(x_test, y_test)}, f)
