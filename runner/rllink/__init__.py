"""RLlink: training with external simulators.

A message with episodes passes these modules:

1. `listener` accepts the connection, and limits connections that have not sent a request.
2. `connection` reads the frame, decodes the request (`messages`), and handles sessions, extensions and time limits.
3. `service` answers the request. Episodes are decoded and checked (`receiving`, `open_episodes`), written to the
   `journal`, and added to the `message_queue`.
4. `batches` takes the messages of one sample from the queue, without messages of quarantined clients (`client_judges`).
5. `module_intake` joins their chunks (`received_episodes`) and computes missing columns, `env_episodes` finds the
   episodes that are over, and `env_runner` returns the sample.

If the server chooses the actions, `action_requests` collects the requests of one turn of the event loop for
`inference`. `server` runs the event loop in a thread, `build` makes all objects, and `returning_clients` restores
clients after a restart. The client (`client`) does not import any other module of this package, and the conformance
checker (`check`) imports only the client.
"""

from runner.rllink.client import Client

__all__ = ["Client"]
