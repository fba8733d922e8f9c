package envoy

import (
	"net/http"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	previoushostsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	previousprioritiesv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/priority/previous_priorities/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"
)

const (
	// defaultRetryOn is Istio's default: only failures before the server can have processed
	// the request.
	defaultRetryOn  = "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes"
	defaultRetries  = 2
	hostSelection   = 5
	inboundRetryOn  = "reset-before-request"
	retriableStatus = "retriable-status-codes"
)

// retryPolicy is Istio's default, changed by the route. With a consistent hash, a retry
// goes to the same endpoint again.
func retryPolicy(in *networking.HTTPRetry, hashed bool) *routev3.RetryPolicy {
	if in == nil && !hashed {
		return defaultRetry()
	}
	return makeRetryPolicy(in, hashed)
}

func makeRetryPolicy(in *networking.HTTPRetry, hashed bool) *routev3.RetryPolicy {
	out := &routev3.RetryPolicy{
		NumRetries:                    wrapperspb.UInt32(defaultRetries),
		RetryOn:                       defaultRetryOn,
		HostSelectionRetryMaxAttempts: hostSelection,
	}
	if !hashed {
		out.RetryHostPredicate = previousHosts()
	}
	if in == nil {
		return out
	}
	if in.GetAttempts() <= 0 {
		return nil
	}
	out.NumRetries = wrapperspb.UInt32(uint32(in.GetAttempts()))
	if in.GetRetryOn() != "" {
		out.RetryOn, out.RetriableStatusCodes = splitRetryOn(in.GetRetryOn())
	}
	out.PerTryTimeout = in.GetPerTryTimeout()
	if v := in.GetRetryIgnorePreviousHosts(); v != nil {
		out.RetryHostPredicate = nil
		if v.GetValue() {
			out.RetryHostPredicate = previousHosts()
		}
	}
	if in.GetRetryRemoteLocalities().GetValue() {
		out.RetryPriority = &routev3.RetryPolicy_RetryPriority{
			Name: "envoy.retry_priorities.previous_priorities",
			ConfigType: &routev3.RetryPolicy_RetryPriority_TypedConfig{
				TypedConfig: pack(&previousprioritiesv3.PreviousPrioritiesConfig{UpdateFrequency: 2}),
			},
		}
	}
	if b := in.GetBackoff(); b != nil {
		out.RetryBackOff = &routev3.RetryPolicy_RetryBackOff{BaseInterval: b}
	}
	return out
}

// inboundRetryPolicy is for requests to the application: there is one endpoint, so that only the
// attempts, the conditions and the pause count. Nil is Istio's default, and no attempts are no policy.
func inboundRetryPolicy(in *networking.HTTPRetry) *routev3.RetryPolicy {
	out := &routev3.RetryPolicy{NumRetries: wrapperspb.UInt32(defaultRetries), RetryOn: inboundRetryOn}
	if in == nil {
		return out
	}
	if in.GetAttempts() <= 0 {
		return nil
	}
	out.NumRetries = wrapperspb.UInt32(uint32(in.GetAttempts()))
	if in.GetRetryOn() != "" {
		out.RetryOn, out.RetriableStatusCodes = splitRetryOn(in.GetRetryOn())
	}
	if b := in.GetBackoff(); b != nil {
		out.RetryBackOff = &routev3.RetryPolicy_RetryBackOff{BaseInterval: b}
	}
	return out
}

// hoistRetryPolicy moves the retry policy from the routes to the virtual host, if several
// routes forward requests and all of them have the same one. A route without retries could
// not override the virtual host's policy, so then the routes keep their own.
func hoistRetryPolicy(host *routev3.VirtualHost) {
	var policy *routev3.RetryPolicy
	routes := 0
	for _, r := range host.GetRoutes() {
		action := r.GetRoute()
		if action == nil {
			continue
		}
		if routes++; routes == 1 {
			policy = action.GetRetryPolicy()
		}
		if policy == nil || !proto.Equal(policy, action.GetRetryPolicy()) {
			return
		}
	}
	if routes < 2 {
		return
	}
	host.RetryPolicy = policy
	for _, r := range host.GetRoutes() {
		if action := r.GetRoute(); action != nil {
			action.RetryPolicy = nil
		}
	}
}

// makePreviousHosts excludes endpoints that failed already. Envoy identifies the extension
// by the type of its configuration. The name is for people, and short because thousands of
// routes have it.
func makePreviousHosts() []*routev3.RetryPolicy_RetryHostPredicate {
	return []*routev3.RetryPolicy_RetryHostPredicate{{
		Name: "previous_hosts",
		ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{
			TypedConfig: pack(&previoushostsv3.PreviousHostsPredicate{}),
		},
	}}
}

// splitRetryOn separates the status codes from the other conditions.
func splitRetryOn(text string) (string, []uint32) {
	var words []string
	var codes []uint32
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		n, err := strconv.Atoi(part)
		switch {
		case part == "":
		case err == nil && http.StatusText(n) != "":
			codes = append(codes, uint32(n))
		default:
			words = append(words, part)
		}
	}
	on := strings.Join(words, ",")
	if len(codes) > 0 && !strings.Contains(on, retriableStatus) {
		on += "," + retriableStatus
	}
	return on, codes
}
