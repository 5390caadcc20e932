"""Maps exception classes to details, by name. No library is imported, and a class imported twice is still known.

Names are `module.Class`. Private modules do not count (`openai._exceptions.X` is `openai.X`), `httpx2` is `httpx`, and
a class whose library moved it to another module is found by its package and name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

TWINS: Final = {"httpx2": "httpx", "httpcore2": "httpcore"}
"""Packages that are the same library under another name."""
_SHARED_PACKAGES: Final = frozenset({"google", "azure"})
"""Packages that belong to many libraries: the second part of such a name counts, too."""

FIRM_CLASSES: Final[dict[str, str]] = {
    # control flow
    "langgraph.errors.GraphInterrupt": "suspended",
    "langgraph.errors.GraphDrained": "released",
    "pydantic_ai.exceptions.ApprovalRequired": "suspended",
    "pydantic_ai.exceptions.CallDeferred": "suspended",
    "mcp.shared.exceptions.UrlElicitationRequiredError": "suspended",
    # unknown whether the effect landed
    "redrive.errors.OutcomeUnknown": "outcome_unknown",
    "redrive.errors.CommitUnknown": "outcome_unknown",
    # redrive itself
    "redrive.errors.StoreFull": "own_limits",
    "builtins.MemoryError": "own_limits",
    "redrive.errors.StoreUnavailable": "contention",
    "redrive.errors.StoreFailed": "server_error",
    "redrive.errors.InvalidInput": "invalid_input",
    "redrive.errors.ConfigError": "invalid_input",
    "redrive.errors.JobNotFound": "data_integrity",
    "redrive.errors.StaleJob": "contention",
    # anthropic, openai
    "anthropic.APITimeoutError": "timeout",
    "anthropic.APIConnectionError": "network",
    "anthropic.RetryableError": "server_error",
    "anthropic.CredentialsError": "credentials",
    "anthropic.EnforcedSpendLimitReachedError": "quota",
    "anthropic.OrganizationOnHoldError": "quota",
    "anthropic.CMEKKeyDisabledError": "authority",
    "anthropic.CMEKKeyNetworkBlockedError": "authority",
    "anthropic.OrganizationTypeNotSupportedError": "authority",
    "anthropic.WorkloadIdentityError": "credentials",
    "anthropic.APIWebhookValidationError": "invalid_input",
    "openai.APITimeoutError": "timeout",
    "openai.APIConnectionError": "network",
    "openai.LengthFinishReasonError": "token_budget",
    "openai.ContentFilterFinishReasonError": "refusal",
    "openai.InvalidWebhookSignatureError": "invalid_input",
    "openai.WebSocketConnectionClosedError": "network",
    "openai.WebSocketQueueFullError": "contention",
    "openai._AmbiguousModuleClientUsageError": "bug",
    "openai.StreamAlreadyConsumed": "bug",
    "openai.MissingDependencyError": "bug",
    "openai.lib.APIRemovedInV1": "bug",
    "anthropic.StreamAlreadyConsumed": "bug",
    "anthropic.lib.MissingDependencyError": "bug",
    # google
    "google.genai.errors.UnknownFunctionCallArgumentError": "invalid_output",
    "google.genai.errors.FunctionInvocationError": "invalid_output",
    "google.genai.errors.UnsupportedFunctionError": "bug",
    "google.genai.errors.UnknownApiResponseError": "server_error",
    "google.auth.exceptions.TransportError": "network",
    "google.auth.exceptions.TimeoutError": "timeout",
    "google.auth.exceptions.ResponseError": "server_error",
    "google.auth.exceptions.GoogleAuthError": "credentials",
    "google.api_core.exceptions.DuplicateCredentialArgs": "bug",
    # litellm
    "litellm.exceptions.Timeout": "timeout",
    "litellm.exceptions.APIConnectionError": "network",
    "litellm.exceptions.ContextWindowExceededError": "context_overflow",
    "litellm.exceptions.BudgetExceededError": "token_budget",
    "litellm.exceptions.PaymentRequiredError": "quota",
    "litellm.exceptions.ContentPolicyViolationError": "refusal",
    "litellm.exceptions.RejectedRequestError": "authority",
    "litellm.exceptions.GuardrailRaisedException": "authority",
    "litellm.exceptions.BlockedPiiEntityError": "authority",
    "litellm.exceptions.UnsupportedParamsError": "invalid_input",
    "litellm.exceptions.LiteLLMUnknownProvider": "invalid_input",
    "litellm.exceptions.ModelNotMappedError": "invalid_input",
    "litellm.exceptions.JSONSchemaValidationError": "invalid_output",
    # pydantic-ai
    "pydantic_ai.exceptions.ModelRateLimitError": "rate_limited",
    "pydantic_ai.exceptions.ModelOverloadedError": "provider_overloaded",
    "pydantic_ai.exceptions.ModelTimeoutError": "timeout",
    "pydantic_ai.exceptions.ModelRequestTimeout": "timeout",
    "pydantic_ai.exceptions.RunTimedOut": "timeout",
    "pydantic_ai.exceptions.ModelConnectionError": "network",
    "pydantic_ai.exceptions.ConcurrencyLimitExceeded": "contention",
    "pydantic_ai.exceptions.ModelContextWindowExceededError": "context_overflow",
    "pydantic_ai.exceptions.ModelQuotaExceededError": "quota",
    "pydantic_ai.exceptions.UsageLimitExceeded": "token_budget",
    "pydantic_ai.exceptions.IncompleteToolCall": "token_budget",
    "pydantic_ai.exceptions.ContentFilterError": "refusal",
    "pydantic_ai.exceptions.UnexpectedModelBehavior": "invalid_output",
    "pydantic_ai.exceptions.ModelRetry": "invalid_output",
    "pydantic_ai.exceptions.ToolRetryError": "invalid_output",
    "pydantic_ai.exceptions.ModelNotFoundError": "data_integrity",
    "pydantic_ai.exceptions.SuspendedResponseExpired": "data_integrity",
    "pydantic_ai.exceptions.UserError": "bug",
    # openai agents
    "agents.exceptions.ToolTimeoutError": "timeout",
    "agents.exceptions.ModelTimeoutError": "timeout",
    "agents.exceptions.MCPToolCancellationError": "network",
    "agents.exceptions.MaxTurnsExceeded": "token_budget",
    "agents.exceptions.ModelRefusalError": "refusal",
    "agents.exceptions.ModelBehaviorError": "invalid_output",
    "agents.exceptions.InputGuardrailTripwireTriggered": "authority",
    "agents.exceptions.OutputGuardrailTripwireTriggered": "authority",
    "agents.exceptions.ToolInputGuardrailTripwireTriggered": "authority",
    "agents.exceptions.ToolOutputGuardrailTripwireTriggered": "authority",
    "agents.exceptions.UserError": "bug",
    # langgraph, langchain
    "langgraph.errors.NodeTimeoutError": "timeout",
    "langgraph.errors.GraphRecursionError": "token_budget",
    "langgraph.errors.InvalidUpdateError": "bug",
    "langgraph.errors.ParentCommand": "bug",
    "langgraph.errors.EmptyInputError": "invalid_input",
    "langgraph.errors.UnknownInterruptError": "invalid_input",
    "langgraph.errors.TaskNotFound": "data_integrity",
    "langgraph.errors.EmptyChannelError": "bug",
    "langgraph.checkpoint.base.EmptyChannelError": "bug",
    "langchain_core.exceptions.ContextOverflowError": "context_overflow",
    "langchain_core.exceptions.OutputParserException": "invalid_output",
    "langchain_core.exceptions.ModelRateLimitError": "rate_limited",
    "langchain_core.exceptions.ModelTimeoutError": "timeout",
    "langchain_core.exceptions.ModelConnectionError": "network",
    # claude agent sdk
    "claude_agent_sdk.CLINotFoundError": "dependency_gone",
    "claude_agent_sdk.CLIConnectionError": "network",
    "claude_agent_sdk.CLIJSONDecodeError": "network",
    "claude_agent_sdk.MessageParseError": "server_error",
    # mcp
    "mcp.client.auth.exceptions.OAuthFlowError": "credentials",
    "mcp.client.streamable_http.StreamableHTTPError": "network",
    "mcp.client.subscriptions.SubscriptionLost": "network",
    "mcp.client.subscriptions.ListenNotSupportedError": "invalid_input",
    "mcp.server.mcpserver.exceptions.ResourceNotFoundError": "data_integrity",
    # httpx, httpcore
    "httpx.TimeoutException": "timeout",
    "httpx.UnsupportedProtocol": "invalid_input",
    "httpx.LocalProtocolError": "invalid_input",
    "httpx.TransportError": "network",
    "httpx.DecodingError": "network",
    "httpx.TooManyRedirects": "invalid_input",
    "httpx.InvalidURL": "invalid_input",
    "httpx.CookieConflict": "bug",
    "httpx.StreamError": "bug",
    "httpcore.TimeoutException": "timeout",
    "httpcore.NetworkError": "network",
    "httpcore.ProxyError": "network",
    "httpcore.RemoteProtocolError": "network",
    "httpcore.ConnectionNotAvailable": "network",
    "httpcore.UnsupportedProtocol": "invalid_input",
    "httpcore.LocalProtocolError": "invalid_input",
    "httpcore.ProtocolError": "network",
    # aiohttp
    "aiohttp.client_exceptions.ServerTimeoutError": "timeout",
    "aiohttp.client_exceptions.ClientConnectorCertificateError": "authority",
    "aiohttp.client_exceptions.ServerFingerprintMismatch": "authority",
    "aiohttp.client_exceptions.ClientConnectionError": "network",
    "aiohttp.client_exceptions.ClientPayloadError": "network",
    "aiohttp.client_exceptions.UploadAbortedError": "network",
    "aiohttp.client_exceptions.InvalidURL": "invalid_input",
    "aiohttp.client_exceptions.NonHttpUrlClientError": "invalid_input",
    "aiohttp.client_exceptions.RedirectClientError": "invalid_input",
    "aiohttp.client_exceptions.TooManyRedirects": "invalid_input",
    "aiohttp.http_exceptions.HttpProcessingError": "network",
    # requests, urllib3
    "requests.exceptions.ConnectTimeout": "timeout",
    "requests.exceptions.Timeout": "timeout",
    "requests.exceptions.SSLError": "authority",
    "requests.exceptions.ConnectionError": "network",
    "requests.exceptions.ChunkedEncodingError": "network",
    "requests.exceptions.ContentDecodingError": "network",
    "requests.exceptions.InvalidJSONError": "invalid_input",
    "requests.exceptions.MissingSchema": "invalid_input",
    "requests.exceptions.InvalidSchema": "invalid_input",
    "requests.exceptions.InvalidURL": "invalid_input",
    "requests.exceptions.InvalidHeader": "invalid_input",
    "requests.exceptions.URLRequired": "invalid_input",
    "requests.exceptions.TooManyRedirects": "invalid_input",
    "requests.exceptions.StreamConsumedError": "bug",
    "requests.exceptions.UnrewindableBodyError": "bug",
    "urllib3.exceptions.NewConnectionError": "network",
    "urllib3.exceptions.TimeoutError": "timeout",
    "urllib3.exceptions.SSLError": "authority",
    "urllib3.exceptions.ProxyError": "network",
    "urllib3.exceptions.ProtocolError": "network",
    "urllib3.exceptions.DecodeError": "network",
    "urllib3.exceptions.HeaderParsingError": "network",
    "urllib3.exceptions.TimeoutStateError": "bug",
    "urllib3.exceptions.IncompleteRead": "network",
    "urllib3.exceptions.InvalidChunkLength": "network",
    "urllib3.exceptions.EmptyPoolError": "contention",
    "urllib3.exceptions.FullPoolError": "contention",
    "urllib3.exceptions.ClosedPoolError": "bug",
    "urllib3.exceptions.HostChangedError": "bug",
    "urllib3.exceptions.LocationValueError": "invalid_input",
    "urllib3.exceptions.InvalidHeader": "invalid_input",
    "urllib3.exceptions.ProxySchemeUnknown": "invalid_input",
    "urllib3.exceptions.ProxySchemeUnsupported": "invalid_input",
    "urllib3.exceptions.UnrewindableBodyError": "bug",
    # aws
    "botocore.exceptions.ReadTimeoutError": "timeout",
    "botocore.exceptions.ConnectTimeoutError": "timeout",
    "botocore.exceptions.WaiterError": "timeout",
    "botocore.exceptions.SSLError": "authority",
    "botocore.exceptions.ConnectionError": "network",
    "botocore.exceptions.HTTPClientError": "network",
    "botocore.exceptions.IncompleteReadError": "network",
    "botocore.exceptions.ChecksumError": "network",
    "botocore.exceptions.FlexibleChecksumError": "network",
    "botocore.exceptions.MetadataRetrievalError": "network",
    "botocore.exceptions.CapacityNotAvailableError": "rate_limited",
    "botocore.parsers.ResponseParserError": "server_error",
    "botocore.eventstream.ParserError": "network",
    "botocore.exceptions.NoCredentialsError": "credentials",
    "botocore.exceptions.PartialCredentialsError": "credentials",
    "botocore.exceptions.CredentialRetrievalError": "credentials",
    "botocore.exceptions.UnknownCredentialError": "credentials",
    "botocore.exceptions.NoAuthTokenError": "credentials",
    "botocore.exceptions.TokenRetrievalError": "credentials",
    "botocore.exceptions.RefreshWithMFAUnsupportedError": "credentials",
    "botocore.exceptions.ProfileNotFound": "credentials",
    "botocore.exceptions.UnauthorizedSSOTokenError": "credentials_expired",
    "botocore.exceptions.SSOError": "credentials",
    "botocore.exceptions.LoginRefreshRequired": "credentials_expired",
    "botocore.exceptions.LoginInsufficientPermissions": "authority",
    "botocore.exceptions.LoginError": "credentials",
    "botocore.exceptions.MissingDependencyException": "bug",
    "botocore.exceptions.UnknownClientMethodError": "bug",
    "botocore.exceptions.OperationNotPageableError": "bug",
    "botocore.exceptions.StubResponseError": "bug",
    "botocore.exceptions.ParamValidationError": "invalid_input",
    "botocore.exceptions.ValidationError": "invalid_input",
    "botocore.exceptions.MissingParametersError": "invalid_input",
    "botocore.exceptions.BotoCoreError": "invalid_input",
    # github
    "github.GithubException.RateLimitExceededException": "rate_limited",
    "github.GithubException.BadCredentialsException": "credentials",
    "github.GithubException.TwoFactorException": "credentials",
    "github.GithubException.UnknownObjectException": "data_integrity",
    "github.GithubException.BadUserAgentException": "invalid_input",
    "github.GithubException.BadAttributeException": "data_integrity",
    "github.GithubException.IncompletableObject": "data_integrity",
    "githubkit.exception.RateLimitExceeded": "rate_limited",
    "githubkit.exception.RequestTimeout": "timeout",
    "githubkit.exception.AuthExpiredError": "credentials_expired",
    "githubkit.exception.AuthCredentialError": "credentials",
    "githubkit.exception.WebhookTypeNotFound": "invalid_input",
    "githubkit.exception.CacheUnsupportedError": "bug",
    "githubkit.exception.GraphQLPaginationError": "bug",
    # kubernetes
    "kubernetes.client.exceptions.ApiTypeError": "invalid_input",
    "kubernetes.client.exceptions.ApiValueError": "invalid_input",
    "kubernetes.client.exceptions.ApiAttributeError": "invalid_input",
    "kubernetes.client.exceptions.ApiKeyError": "invalid_input",
    "kubernetes.config.config_exception.ConfigException": "credentials",
    # redis
    "redis.exceptions.AuthenticationError": "credentials",
    "redis.exceptions.AuthenticationWrongNumberOfArgsError": "credentials",
    "redis.exceptions.ExternalAuthProviderError": "credentials",
    "redis.exceptions.AuthorizationError": "authority",
    "redis.exceptions.NoPermissionError": "authority",
    "redis.exceptions.BusyLoadingError": "contention",
    "redis.exceptions.MaxConnectionsError": "contention",
    "redis.exceptions.ConnectionError": "network",
    "redis.exceptions.TimeoutError": "timeout",
    "redis.exceptions.InvalidResponse": "network",
    "redis.exceptions.OutOfMemoryError": "contention",
    "redis.exceptions.ReadOnlyError": "contention",
    "redis.exceptions.TryAgainError": "contention",
    "redis.exceptions.AskError": "contention",
    "redis.exceptions.WatchError": "contention",
    "redis.exceptions.LockError": "contention",
    "redis.exceptions.ChildDeadlockedError": "contention",
    "redis.exceptions.ClusterDownError": "server_error",
    "redis.exceptions.SlotNotCoveredError": "server_error",
    "redis.exceptions.ClusterError": "server_error",
    "redis.exceptions.ClusterCrossSlotError": "bug",
    "redis.exceptions.CrossSlotTransactionError": "bug",
    "redis.exceptions.InvalidPipelineStack": "bug",
    "redis.exceptions.RedisClusterException": "network",
    "redis.exceptions.NoScriptError": "data_integrity",
    "redis.exceptions.PubSubError": "bug",
    "redis.exceptions.DataError": "invalid_input",
    "redis.multidb.exception.TemporaryUnavailableException": "server_error",
    "redis.multidb.exception.NoValidDatabaseException": "network",
    # databases; most are known by their sqlstate
    "sqlalchemy.exc.TimeoutError": "timeout",
    "sqlalchemy.orm.exc.StaleDataError": "contention",
    "sqlalchemy.orm.exc.DetachedInstanceError": "bug",
    "sqlalchemy.orm.exc.FlushError": "bug",
    "sqlalchemy.exc.DisconnectionError": "network",
    "sqlalchemy.exc.IntegrityError": "invalid_input",
    "sqlalchemy.exc.DataError": "invalid_input",
    "sqlalchemy.exc.NoResultFound": "data_integrity",
    "sqlalchemy.exc.MultipleResultsFound": "data_integrity",
    "sqlalchemy.exc.ArgumentError": "bug",
    "sqlalchemy.exc.CompileError": "bug",
    "sqlalchemy.exc.PendingRollbackError": "contention",
    "sqlalchemy.exc.InvalidRequestError": "bug",
    "psycopg.errors.ConnectionTimeout": "timeout",
    "psycopg.errors.CancellationTimeout": "timeout",
    "psycopg.errors.PipelineAborted": "contention",
    "psycopg.errors.IntegrityError": "invalid_input",
    "psycopg.errors.DataError": "invalid_input",
    "psycopg.errors.ProgrammingError": "bug",
    "psycopg.errors.InterfaceError": "network",
    "psycopg_pool.PoolTimeout": "timeout",
    "psycopg_pool.TooManyRequests": "contention",
    "psycopg2.errors.IntegrityError": "invalid_input",
    "psycopg2.IntegrityError": "invalid_input",
    "psycopg2.InterfaceError": "network",
    "asyncpg.exceptions.InterfaceError": "bug",
    "asyncpg.exceptions.InternalClientError": "network",
    "sqlite3.IntegrityError": "invalid_input",
    "sqlite3.ProgrammingError": "bug",
    "sqlite3.InterfaceError": "bug",
    "apsw.BusyError": "contention",
    "apsw.LockedError": "contention",
    "apsw.FullError": "contention",
    "apsw.ConstraintError": "invalid_input",
    "apsw.IOError": "server_error",
    "apsw.CorruptError": "data_integrity",
    "apsw.NotADBError": "data_integrity",
    "apsw.ReadOnlyError": "authority",
    "apsw.AuthError": "authority",
    "apsw.PermissionsError": "authority",
    "apsw.CantOpenError": "dependency_gone",
    "apsw.InterruptError": "timeout",
    "apsw.NoMemError": "contention",
    "apsw.ProtocolError": "contention",
    "apsw.SchemaChangeError": "contention",
    "apsw.MismatchError": "invalid_input",
    "apsw.TooBigError": "invalid_input",
    "apsw.SQLError": "bug",
    "apsw.BindingsError": "bug",
    "apsw.MisuseError": "bug",
    "apsw.RangeError": "bug",
    "apsw.ConnectionClosedError": "bug",
    "apsw.CursorClosedError": "bug",
    "apsw.ThreadingViolationError": "bug",
    # nats
    "nats.errors.TimeoutError": "timeout",
    "nats.errors.AuthorizationError": "credentials",
    "nats.errors.InvalidUserCredentialsError": "credentials",
    "nats.errors.NoServersError": "network",
    "nats.errors.NoRespondersError": "server_error",
    "nats.errors.StaleConnectionError": "network",
    "nats.errors.ConnectionClosedError": "network",
    "nats.errors.ConnectionDrainingError": "network",
    "nats.errors.ConnectionReconnectingError": "network",
    "nats.errors.ProtocolError": "network",
    "nats.errors.SecureConnFailedError": "network",
    "nats.errors.JsonParseError": "network",
    "nats.errors.OutboundBufferLimitError": "contention",
    "nats.errors.SlowConsumerError": "contention",
    "nats.errors.MaxPayloadError": "invalid_input",
    "nats.errors.BadSubjectError": "invalid_input",
    "nats.errors.BadSubscriptionError": "bug",
    "nats.errors.BadHeaderError": "invalid_input",
    "nats.errors.BadTimeoutError": "invalid_input",
    "nats.errors.SecureConnRequiredError": "invalid_input",
    "nats.errors.SecureConnWantedError": "invalid_input",
    "nats.errors.InvalidCallbackTypeError": "bug",
    "nats.errors.NotJSMessageError": "bug",
    "nats.errors.MsgAlreadyAckdError": "bug",
    "nats.js.errors.KeyWrongLastSequenceError": "contention",
    "nats.js.errors.ServiceUnavailableError": "server_error",
    "nats.js.errors.ServerError": "server_error",
    "nats.js.errors.NoStreamResponseError": "server_error",
    "nats.js.errors.TooManyStalledMsgsError": "contention",
    "nats.js.errors.ConsumerSequenceMismatchError": "contention",
    "nats.js.errors.NotFoundError": "data_integrity",
    "nats.js.errors.NoKeysError": "data_integrity",
    "nats.js.errors.DigestMismatchError": "data_integrity",
    "nats.js.errors.BadObjectMetaError": "data_integrity",
    "nats.js.errors.ObjectAlreadyExists": "data_integrity",
    "nats.js.errors.KeyHistoryTooLargeError": "invalid_input",
    "nats.js.errors.InvalidKeyError": "invalid_input",
    "nats.js.errors.InvalidBucketNameError": "invalid_input",
    "nats.js.errors.InvalidObjectNameError": "invalid_input",
    "nats.js.errors.LinkIsABucketError": "invalid_input",
    # grpc
    "grpc.FutureTimeoutError": "timeout",
    "pydantic.errors.PydanticUserError": "bug",
    "jsonschema.exceptions.SchemaError": "bug",
    # instructor
    "instructor.core.exceptions.IncompleteOutputException": "token_budget",
    "instructor.core.exceptions.InstructorRetryException": "invalid_output",
    # the network, lower layers
    "ssl.SSLCertVerificationError": "authority",
    "ssl.SSLError": "network",
    "socket.gaierror": "network",
    "socket.herror": "network",
    "http.client.InvalidURL": "invalid_input",
    "http.client.ImproperConnectionState": "bug",
    "http.client.HTTPException": "network",
    "h11.RemoteProtocolError": "network",
    "h2.exceptions.ProtocolError": "network",
    "websockets.exceptions.ConnectionClosed": "network",
    "websockets.exceptions.InvalidURI": "invalid_input",
    "websockets.exceptions.ProtocolError": "network",
    "websockets.exceptions.InvalidMessage": "network",
    "websockets.exceptions.PayloadTooBig": "invalid_input",
    "websockets.exceptions.ConcurrencyError": "bug",
    "anyio.BrokenResourceError": "network",
    "anyio.ClosedResourceError": "network",
    "anyio.EndOfStream": "network",
    "anyio.IncompleteRead": "network",
    "anyio.ConnectionFailed": "network",
    "anyio.WouldBlock": "contention",
    "asyncio.exceptions.IncompleteReadError": "network",
    "asyncio.exceptions.InvalidStateError": "bug",
    "asyncio.queues.QueueFull": "contention",
    "queue.Full": "contention",
    "smtplib.SMTPServerDisconnected": "network",
    "smtplib.SMTPConnectError": "network",
    "smtplib.SMTPAuthenticationError": "credentials",
    "jwt.exceptions.ExpiredSignatureError": "credentials_expired",
    "smtplib.SMTPNotSupportedError": "invalid_input",
    "ftplib.error_temp": "server_error",
    "ftplib.error_perm": "invalid_input",
    "ftplib.error_reply": "network",
    "ftplib.error_proto": "network",
    "imaplib.IMAP4.abort": "network",
    "jwt.exceptions.InvalidTokenError": "credentials",
    "jwt.exceptions.InvalidKeyError": "credentials",
    "subprocess.TimeoutExpired": "timeout",
    "concurrent.futures.BrokenExecutor": "server_error",
    "concurrent.futures.InvalidStateError": "bug",
}
"""Classes that decide the detail even if a status comes with them."""

UNFIT: Final = "unfit"
"""Mark of UNFIT_CLASSES in the index. The mark is no detail: a rule checks first whether a model was asked."""
UNFIT_CLASSES: Final = (
    "json.decoder.JSONDecodeError",
    "requests.exceptions.JSONDecodeError",
    "msgspec.ValidationError",
    "msgspec.DecodeError",
    "pydantic_core.ValidationError",
    "pydantic.v1.error_wrappers.ValidationError",
    "jsonschema.exceptions.ValidationError",
    "xml.etree.ElementTree.ParseError",
    "yaml.error.YAMLError",
    "tomllib.TOMLDecodeError",
)
"""Classes for data that cannot be read or does not fit: invalid_output if a model was asked, else unknown."""

STATUS_CLASSES: Final[dict[str, str]] = {
    # classes that stand for a status: a status from the answer is more exact
    "anthropic.BadRequestError": "invalid_input",
    "anthropic.AuthenticationError": "credentials",
    "anthropic.PermissionDeniedError": "authority",
    "anthropic.NotFoundError": "data_integrity",
    "anthropic.RequestTimeoutError": "timeout",
    "anthropic.ConflictError": "contention",
    "anthropic.ContentTooLargeError": "context_overflow",
    "anthropic.UnprocessableEntityError": "invalid_input",
    "anthropic.RateLimitError": "rate_limited",
    "anthropic.GatewayTimeoutError": "timeout",
    "anthropic.OverloadedError": "provider_overloaded",
    "anthropic.APIError": "server_error",
    "openai.BadRequestError": "invalid_input",
    "openai.AuthenticationError": "credentials",
    "openai.PermissionDeniedError": "authority",
    "openai.NotFoundError": "data_integrity",
    "openai.ConflictError": "contention",
    "openai.UnprocessableEntityError": "invalid_input",
    "openai.RateLimitError": "rate_limited",
    "openai.SubjectTokenProviderError": "credentials",
    "openai.APIError": "server_error",
    "litellm.exceptions.ServiceUnavailableError": "server_error",
    "litellm.exceptions.BadGatewayError": "server_error",
    "google.genai.errors.ClientError": "invalid_input",
    "google.genai.errors.APIError": "server_error",
    "google.api_core.exceptions.TransferStalledError": "network",
    "google.api_core.exceptions.UploadCancelledError": "network",
    "google.api_core.exceptions.ServerError": "server_error",
    "google.api_core.exceptions.ClientError": "invalid_input",
    "pydantic_ai.exceptions.ModelUnavailableError": "server_error",
    "pydantic_ai.exceptions.ModelServerError": "server_error",
    "pydantic_ai.exceptions.ModelAuthenticationError": "credentials",
    "pydantic_ai.exceptions.ModelRequestRejectedError": "invalid_input",
    "langchain_core.exceptions.ModelAuthenticationError": "credentials",
    "langchain_core.exceptions.ModelPermissionDeniedError": "authority",
    "langchain_core.exceptions.ModelNotFoundError": "data_integrity",
    "langchain_core.exceptions.ModelInvalidRequestError": "invalid_input",
    "langchain_core.exceptions.ModelAPIError": "server_error",
    "aiohttp.client_exceptions.ClientHttpProxyError": "network",
    "aiohttp.client_exceptions.WSServerHandshakeError": "server_error",
    "aiohttp.client_exceptions.ContentTypeError": "server_error",
    "kubernetes.client.exceptions.ServiceException": "server_error",
    "kubernetes.client.exceptions.ApiException": "network",
    "kubernetes_asyncio.client.exceptions.ApiException": "network",
    "nats.js.errors.BadRequestError": "invalid_input",
    "nats.js.errors.BadBucketError": "invalid_input",
    "redis.exceptions.ResponseError": "invalid_input",
    "psycopg.errors.OperationalError": "network",
    "psycopg2.OperationalError": "network",
    "sqlalchemy.exc.ProgrammingError": "bug",
    # wrappers that say less than the wrapped exception
    "urllib.error.URLError": "network",
    "urllib3.exceptions.MaxRetryError": "network",
    "requests.exceptions.RetryError": "server_error",
    # builtins
    "builtins.TimeoutError": "timeout",
    "builtins.ConnectionError": "network",
    "builtins.FileNotFoundError": "data_integrity",
    "builtins.FileExistsError": "data_integrity",
    "builtins.NotADirectoryError": "data_integrity",
    "builtins.IsADirectoryError": "data_integrity",
    "builtins.PermissionError": "authority",
    "builtins.BlockingIOError": "contention",
    "builtins.TypeError": "bug",
    "builtins.AttributeError": "bug",
    "builtins.NameError": "bug",
    "builtins.ImportError": "bug",
    "builtins.AssertionError": "bug",
    "builtins.SyntaxError": "bug",
    "builtins.NotImplementedError": "bug",
    "builtins.RecursionError": "bug",
}
"""Classes that count only where no status says more."""

CLASSES: Final[dict[str, str]] = FIRM_CLASSES | dict.fromkeys(UNFIT_CLASSES, "invalid_output") | STATUS_CLASSES

MODEL_PACKAGES: Final = frozenset(
    {
        "anthropic", "openai", "litellm", "google.genai", "pydantic_ai", "agents", "langchain_core", "langchain_openai",
        "langchain_anthropic", "claude_agent_sdk", "mistralai", "cohere", "groq", "together", "huggingface_hub",
    }
)  # fmt: skip
"""Libraries that call models and little else."""


def canonical(name: str) -> str:
    """Returns the name under which a class is listed: without private modules, a renamed twin as the original."""
    package, *path = name.split(".")
    return ".".join(
        [TWINS.get(package, package), *(part for part in path[:-1] if not part.startswith("_")), *path[-1:]]
    )


def package_of(name: str) -> str:
    first, _, rest = name.partition(".")
    return f"{first}.{rest.partition('.')[0]}" if first in _SHARED_PACKAGES else TWINS.get(first, first)


def name_in_package(name: str) -> str:
    """Returns package and class alone, which stay when a library moves a class to another module."""
    return f"{package_of(name)} {name.rpartition('.')[2]}"


def _index(table: Mapping[str, str]) -> dict[str, str]:
    found = {canonical(name): detail for name, detail in table.items()}
    by_package: dict[str, set[str]] = {}
    for name, detail in table.items():
        by_package.setdefault(name_in_package(name), set()).add(detail)
    return found | {name: details.pop() for name, details in by_package.items() if len(details) == 1}


_FIRM_CLASSES: Final = _index(FIRM_CLASSES | dict.fromkeys(UNFIT_CLASSES, UNFIT))
_STATUS_CLASSES: Final = _index(STATUS_CLASSES)


def _look_up(types: Iterable[str], table: Mapping[str, str]) -> str | None:
    for name in types:
        found = table.get(canonical(name)) or table.get(name_in_package(name))
        if found is not None:
            return found
    return None


@lru_cache(maxsize=2048)
def class_detail(types: tuple[str, ...]) -> str | None:
    """Returns the detail of the most specific known class of an MRO, or UNFIT."""
    return _look_up(types, _FIRM_CLASSES)


@lru_cache(maxsize=2048)
def status_class_detail(types: tuple[str, ...]) -> str | None:
    return _look_up(types, _STATUS_CLASSES)


@lru_cache(maxsize=2048)
def calls_models(types: tuple[str, ...]) -> bool:
    """Returns whether an exception comes from a library that calls models."""
    return any(package_of(name) in MODEL_PACKAGES for name in types)
