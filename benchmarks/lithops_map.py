"""Measure Lithops' `map`: `lithops_map.py CALLS REPEATS FILE`, in an environment with Lithops.

The configuration comes from the variable `LITHOPS_CONFIG`, as JSON. Each run appends its seconds to
the file, and after the runs comes Lithops' version.

On an emulated Lambda the function is there already: it isn't deployed, and requests go to
`AWS_ENDPOINT_URL_LAMBDA`, which Lithops' own calls ignore. Everything else is Lithops' own.
"""

import json
import os
import sys
import time
from typing import Any

import lithops
from engine_figures import FUNCTION


def number(x: int) -> int:
    """Return the argument."""
    return x


def use_emulator(endpoint: str) -> None:
    """Send Lithops' calls to an emulator, whose function is deployed."""
    from lithops.serverless.backends.aws_lambda import aws_lambda

    class Session(aws_lambda.URLLib3Session):
        def send(self, request: Any) -> Any:
            _, _, path = request.url.partition(".amazonaws.com")
            request.url = endpoint + path
            return super().send(request)

    aws_lambda.URLLib3Session = Session
    backend = aws_lambda.AWSLambdaBackend
    backend._format_function_name = lambda *_: FUNCTION
    backend._deploy_default_runtime = lambda *_: None


def main() -> None:
    """Run `map` so many times with one executor."""
    calls, repeats, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    if "AWS_ENDPOINT_URL_LAMBDA" in os.environ:
        use_emulator(os.environ["AWS_ENDPOINT_URL_LAMBDA"])
    with open(path, "a", buffering=1) as file:
        print(json.dumps({"version": lithops.__version__}), file=file)
        with lithops.FunctionExecutor(config=json.loads(os.environ["LITHOPS_CONFIG"])) as executor:
            for _ in range(repeats):
                began = time.perf_counter()
                executor.map(number, range(calls))
                values = executor.get_result()
                seconds = time.perf_counter() - began
                if values != list(range(calls)):
                    raise ValueError(f"wrong values: {str(values)[:100]}")
                print(json.dumps({"seconds": seconds}), file=file)


if __name__ == "__main__":
    main()
