"""Attacks on a running server: one module per area, one async function per attack.

To add one: write `async def name(target: AttackTarget) -> None` in a module of this package, decorate it with
`@attack("name-of-it", "what it does")` from `benchmarks.attack.registry`, and import the module in
`benchmarks.attack.catalog`. A function carries out the attack once, and closes what it opened unless leaving
it open is the attack. It runs in a separate process, so that its work does not delay the measured clients.
"""
