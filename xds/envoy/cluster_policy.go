package envoy

import (
	"strconv"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	commonv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/matcher/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	weightedv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/client_side_weighted_round_robin/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/xds/view"
)

// outlierDetection ejects endpoints only if a DestinationRule asks for it, and never by
// success rate. A threshold of 0 ejects nobody, as with the other thresholds. Endpoints that are known to be unhealthy get no requests, however few
// others are left.
func (b *clusterBuilder) outlierDetection() {
	b.c.CommonLbConfig.HealthyPanicThreshold = &typev3.Percent{}
	in := b.p.Policy.GetOutlierDetection()
	if in == nil {
		return
	}
	out := &clusterv3.OutlierDetection{
		EnforcingSuccessRate: wrapperspb.UInt32(0),
		Interval:             unlessDefault(in.GetInterval(), ejectionInterval),
		BaseEjectionTime:     unlessDefault(in.GetBaseEjectionTime(), ejectionTime),
	}
	switch e := in.GetConsecutive_5XxErrors(); {
	case e == nil, e.GetValue() == ejectionErrors:
	case e.GetValue() == 0:
		out.Consecutive_5Xx, out.EnforcingConsecutive_5Xx = e, wrapperspb.UInt32(0)
	default: // enforced by Envoy's default
		out.Consecutive_5Xx = e
	}
	if e := in.GetConsecutiveGatewayErrors(); e != nil {
		out.ConsecutiveGatewayFailure = wrapperspb.UInt32(e.GetValue())
		out.EnforcingConsecutiveGatewayFailure = enforced(e.GetValue())
	}
	if p := in.GetFailurePercentageThreshold(); p != nil { // Envoy's default is to count, and to eject nobody
		out.EnforcingFailurePercentage = enforced(p.GetValue())
		if p.GetValue() > 0 {
			out.FailurePercentageThreshold = wrapperspb.UInt32(p.GetValue())
		}
	}
	if n := in.GetMaxEjectionPercent(); n > 0 {
		out.MaxEjectionPercent = wrapperspb.UInt32(uint32(n))
	}
	if in.GetSplitExternalLocalOriginErrors() {
		out.SplitExternalLocalOriginErrors = true
		if n := in.GetConsecutiveLocalOriginFailures().GetValue(); n > 0 {
			out.ConsecutiveLocalOriginFailure = wrapperspb.UInt32(n)
			out.EnforcingConsecutiveLocalOriginFailure = wrapperspb.UInt32(100)
		}
		out.EnforcingLocalOriginSuccessRate = wrapperspb.UInt32(0)
	}
	b.c.OutlierDetection = out
	b.c.CommonLbConfig.HealthyPanicThreshold.Value = float64(max(in.GetMinHealthPercent(), 0))
	b.errorCodes(in.GetOutlierDetectionHttpErrorCodes())
}

// Envoy's defaults of outlier detection (its OutlierDetection message).
const (
	ejectionInterval = 10 * time.Second
	ejectionTime     = 30 * time.Second
	ejectionErrors   = 5
)

// unlessDefault is nil for a duration that is Envoy's default.
func unlessDefault(d *durationpb.Duration, assumed time.Duration) *durationpb.Duration {
	if d.AsDuration() == assumed {
		return nil
	}
	return d
}

func enforced(n uint32) *wrapperspb.UInt32Value {
	if n > 0 {
		n = 100
	}
	return wrapperspb.UInt32(n)
}

func (b *clusterBuilder) errorCodes(codes []uint32) {
	if len(codes) == 0 {
		return
	}
	rules := make([]*commonv3.MatchPredicate, 0, len(codes))
	for _, code := range codes {
		rules = append(rules, &commonv3.MatchPredicate{Rule: &commonv3.MatchPredicate_HttpResponseHeadersMatch{
			HttpResponseHeadersMatch: &commonv3.HttpHeadersMatch{Headers: []*routev3.HeaderMatcher{{
				Name: ":status",
				HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{
					MatchPattern: &matcherv3.StringMatcher_Exact{Exact: strconv.FormatUint(uint64(code), 10)},
				}},
			}}},
		}})
	}
	match := rules[0]
	if len(rules) > 1 {
		match = &commonv3.MatchPredicate{Rule: &commonv3.MatchPredicate_OrMatch{
			OrMatch: &commonv3.MatchPredicate_MatchSet{Rules: rules},
		}}
	}
	b.options().OutlierDetection = &httpv3.HttpProtocolOptions_OutlierDetection{ErrorMatcher: match}
}

func (b *clusterBuilder) loadBalancer() {
	if b.p.Discovery == view.DiscoverOriginalDst || b.p.Discovery == view.DiscoverDynamic {
		return
	}
	if b.p.LocalityWeighted {
		b.c.CommonLbConfig.LocalityConfigSpecifier = &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig_{
			LocalityWeightedLbConfig: &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig{},
		}
	}
	lb := b.p.Policy.GetLoadBalancer()
	switch lb.GetSimple() {
	case networking.LoadBalancerSettings_RANDOM:
		b.c.LbPolicy = clusterv3.Cluster_RANDOM
	case networking.LoadBalancerSettings_ROUND_ROBIN:
		b.c.LbPolicy = clusterv3.Cluster_ROUND_ROBIN
		if s := slowStart(lb); s != nil {
			b.c.LbConfig = &clusterv3.Cluster_RoundRobinLbConfig_{
				RoundRobinLbConfig: &clusterv3.Cluster_RoundRobinLbConfig{SlowStartConfig: s},
			}
		}
	case networking.LoadBalancerSettings_UNSPECIFIED, networking.LoadBalancerSettings_LEAST_CONN, //nolint:staticcheck // in use
		networking.LoadBalancerSettings_LEAST_REQUEST, networking.LoadBalancerSettings_PASSTHROUGH:
		b.c.LbPolicy = clusterv3.Cluster_LEAST_REQUEST
		if s := slowStart(lb); s != nil {
			b.c.LbConfig = &clusterv3.Cluster_LeastRequestLbConfig_{
				LeastRequestLbConfig: &clusterv3.Cluster_LeastRequestLbConfig{SlowStartConfig: s},
			}
		}
	}
	b.consistentHash(lb.GetConsistentHash())
	b.backendUtilization(lb.GetBackendUtilization())
}

// backendUtilization weighs endpoints by what they report of their load in the header
// endpoint-load-metrics of their responses (ORCA). Of localities, Envoy looks at their priorities
// then, and not at their weights.
func (b *clusterBuilder) backendUtilization(u *networking.LoadBalancerSettings_BackendUtilizationLB) {
	if u == nil {
		return
	}
	b.c.LbPolicy, b.c.LbConfig = clusterv3.Cluster_LOAD_BALANCING_POLICY_CONFIG, nil
	b.c.CommonLbConfig.LocalityConfigSpecifier = nil
	b.c.LoadBalancingPolicy = &clusterv3.LoadBalancingPolicy{Policies: []*clusterv3.LoadBalancingPolicy_Policy{{
		TypedExtensionConfig: &corev3.TypedExtensionConfig{
			Name: "envoy.load_balancing_policies.client_side_weighted_round_robin",
			TypedConfig: pack(&weightedv3.ClientSideWeightedRoundRobin{
				BlackoutPeriod:         u.GetWeightStabilizationPeriod(),
				WeightExpirationPeriod: u.GetWeightExpirationPeriod(),
				WeightUpdatePeriod:     u.GetWeightUpdatePeriod(),
				// Envoy's default is 1, and Istio's no penalty.
				ErrorUtilizationPenalty:            wrapperspb.Float(float32(u.GetErrorUtilizationPenaltyPercent()) / 100),
				MetricNamesForComputingUtilization: u.GetMetricNamesForComputingUtilization(),
			}),
		},
	}}}
}

func slowStart(lb *networking.LoadBalancerSettings) *clusterv3.Cluster_SlowStartConfig {
	w := lb.GetWarmup()
	if w == nil {
		if d := lb.GetWarmupDurationSecs(); d != nil {
			return &clusterv3.Cluster_SlowStartConfig{SlowStartWindow: d}
		}
		return nil
	}
	out := &clusterv3.Cluster_SlowStartConfig{
		SlowStartWindow:  w.GetDuration(),
		Aggression:       &corev3.RuntimeDouble{DefaultValue: 1, RuntimeKey: "("},
		MinWeightPercent: &typev3.Percent{Value: 10},
	}
	if w.GetAggression() != nil {
		out.Aggression.DefaultValue = w.GetAggression().GetValue()
	}
	if w.GetMinimumPercent() != nil {
		out.MinWeightPercent.Value = w.GetMinimumPercent().GetValue()
	}
	return out
}

func (b *clusterBuilder) consistentHash(h *networking.LoadBalancerSettings_ConsistentHashLB) {
	if h == nil {
		return
	}
	if m := h.GetMaglev(); m != nil {
		b.c.LbPolicy, b.c.LbConfig = clusterv3.Cluster_MAGLEV, nil
		if m.GetTableSize() != 0 {
			b.c.LbConfig = &clusterv3.Cluster_MaglevLbConfig_{
				MaglevLbConfig: &clusterv3.Cluster_MaglevLbConfig{TableSize: wrapperspb.UInt64(m.GetTableSize())},
			}
		}
		return
	}
	size := h.GetMinimumRingSize() //nolint:staticcheck // deprecated, and in use
	if r := h.GetRingHash(); r != nil {
		size = r.GetMinimumRingSize()
	} else if size == 0 {
		size = 1024
	}
	b.c.LbPolicy, b.c.LbConfig = clusterv3.Cluster_RING_HASH, nil
	if size != 0 || b.p.TableLimit != 0 {
		config := &clusterv3.Cluster_RingHashLbConfig{}
		if size != 0 {
			config.MinimumRingSize = wrapperspb.UInt64(size)
		}
		if b.p.TableLimit != 0 {
			config.MaximumRingSize = wrapperspb.UInt64(b.p.TableLimit)
		}
		b.c.LbConfig = &clusterv3.Cluster_RingHashLbConfig_{RingHashLbConfig: config}
	}
}
