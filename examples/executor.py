"""Submit functions to Shoal as to any executor of concurrent.futures."""

from concurrent.futures import as_completed

from shoal import ShoalExecutor


def is_prime(number: int) -> bool:
    """Test a number by trial division."""
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def digits(text: str) -> int:
    """Count the digits of a number; fails for other text."""
    return len(str(int(text)))


if __name__ == "__main__":
    with ShoalExecutor(max_workers=2) as executor:
        found = executor.map(is_prime, range(2000))
        print(sum(found), "primes below 2000")

        futures = {executor.submit(pow, 3, exponent): exponent for exponent in (10, 20, 30)}
        for future in as_completed(futures):
            print(f"3 to the {futures[future]} is {future.result()}")

        try:
            executor.submit(digits, "many").result()
        except ValueError as error:
            print(f"failed: {error}\non the worker: {error.__cause__}")
