package webhook

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

func oneOf(s string, list []string) bool { return slices.Contains(list, s) }

//nolint:gochecknoglobals // a read-only table
var grpcStatuses = []string{
	"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
	"PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
	"INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
}

// retryOn are the conditions that Envoy knows, besides HTTP statuses; the last
// five are statuses of gRPC.
//
//nolint:gochecknoglobals // a read-only table
var retryOn = []string{
	"5xx", "gateway-error", "reset", "reset-before-request", "connect-failure", "retriable-4xx", "refused-stream",
	"retriable-status-codes", "retriable-headers", "envoy-ratelimited", "http3-post-connect-failure",
	"cancelled", "deadline-exceeded", "internal", "resource-exhausted", "unavailable",
}

func (c cursor) faultInjection(f *networking.HTTPFaultInjection) {
	if f == nil {
		return
	}
	if f.Abort == nil && f.Delay == nil {
		c.wrong("the fault does nothing; write abort or delay")
	}
	c.at("abort").abort(f.Abort)
	c.at("delay").delay(f.Delay)
}

func (c cursor) abort(a *networking.HTTPFaultInjection_Abort) {
	if a == nil {
		return
	}
	c.fraction("percentage", a.Percentage)
	switch e := a.ErrorType.(type) {
	case *networking.HTTPFaultInjection_Abort_GrpcStatus:
		if !oneOf(e.GrpcStatus, grpcStatuses) {
			c.at("grpcStatus").wrong("%q is not a status of gRPC%s; write its name, such as \"UNAVAILABLE\"",
				e.GrpcStatus, near(e.GrpcStatus, grpcStatuses...))
		}
	case *networking.HTTPFaultInjection_Abort_Http2Error:
		c.at("http2Error").wrong("http2Error is not supported; use httpStatus or grpcStatus")
	case *networking.HTTPFaultInjection_Abort_HttpStatus:
		c.at("httpStatus").httpStatus(int64(e.HttpStatus))
	default:
		c.warn("the abort has no effect; write httpStatus or grpcStatus")
	}
}

func (c cursor) delay(d *networking.HTTPFaultInjection_Delay) {
	if d == nil {
		return
	}
	c.fraction("percentage", d.Percentage)
	switch t := d.HttpDelayType.(type) {
	case *networking.HTTPFaultInjection_Delay_FixedDelay:
		c.at("fixedDelay").because(whyNotDuration(t.FixedDelay))
	case *networking.HTTPFaultInjection_Delay_ExponentialDelay:
		c.at("exponentialDelay").wrong("exponentialDelay is not supported; use fixedDelay")
	}
}

func (c cursor) retries(r *networking.HTTPRetry) {
	if r == nil {
		return
	}
	if r.Attempts < 0 {
		c.at("attempts").wrong("%d attempts are not possible; use 0 (none) or more", r.Attempts)
	}
	if r.Attempts == 0 && (r.PerTryTimeout != nil || r.RetryOn != "" || r.RetryRemoteLocalities != nil) {
		c.wrong("attempts is 0, which turns retries off, so nothing else may be set; write attempts, or remove the rest")
	}
	c.duration("perTryTimeout", r.PerTryTimeout)
	c.duration("backoff", r.Backoff)
	c.retryConditions(r)
}

// inboundRetries judges MeshConfig's retries of requests to applications.
func (c cursor) inboundRetries(r *networking.HTTPRetry) {
	if r == nil {
		return
	}
	if r.Attempts < 0 {
		c.at("attempts").wrong("%d attempts are not possible; use 0 (none) or more", r.Attempts)
	}
	if r.Attempts == 0 && (r.RetryOn != "" || r.Backoff != nil) {
		c.warn("attempts is 0, which turns these retries off: the rest has no effect; write attempts, or remove the rest")
	}
	c.duration("backoff", r.Backoff)
	c.retryConditions(r)
}

func (c cursor) retryConditions(r *networking.HTTPRetry) {
	if r.RetryOn == "" {
		return
	}
	for cond := range strings.SplitSeq(r.RetryOn, ",") {
		status, err := strconv.Atoi(cond)
		if err == nil && http.StatusText(status) != "" || oneOf(cond, retryOn) {
			continue
		}
		if strings.TrimSpace(cond) != cond {
			c.at("retryOn").wrong("%q holds a space; separate conditions by commas alone", r.RetryOn)
			continue
		}
		c.at("retryOn").wrong("%q is neither a retry condition nor an HTTP status%s; use one of %s",
			cond, near(cond, retryOn...), strings.Join(retryOn, ", "))
	}
}
