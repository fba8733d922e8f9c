package authz

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	security "istio.io/api/security/v1beta1"
)

const (
	// shadowAllow and shadowDeny begin the names of statistics and metadata of rules that
	// are only tried out. They are Istio's (pilot/pkg/security/authz/model).
	shadowAllow = "istio_dry_run_allow_"
	shadowDeny  = "istio_dry_run_deny_"
	// shadowCustom begins the metadata by which ext_authz is told whether to ask, and
	// shadowPolicy ends it: the name of the rule that matched.
	shadowCustom = "istio_ext_authz_"
	shadowPolicy = "shadow_effective_policy_id"
	// tcpStatPrefix begins the statistics of network filters.
	tcpStatPrefix = "tcp."
	// customPrefix begins the names of CUSTOM's rules: the filter ext_authz compares it.
	customPrefix = "istio-ext-authz-"
	// noProvider ends the names of rules that deny because their provider is missing.
	noProvider = "-deny-due-to-bad-CUSTOM-action"
)

// Policy is an AuthorizationPolicy that applies to a workload.
type Policy struct {
	// Namespace and Name are the object's. Two policies of one name are a fault of both.
	Namespace, Name string
	// Spec is what the object says; nil is an object that says nothing: an ALLOW policy
	// that allows nothing.
	Spec *security.AuthorizationPolicy
	// DryRun says that the object has the annotation istio.io/dry-run: its rules are
	// counted and not enforced.
	DryRun bool
}

// Options is what the mesh says.
type Options struct {
	// TrustDomains are the mesh's own trust domain, and then its aliases. A principal of
	// one of them, or of "cluster.local", is matched with each of them. Without any,
	// principals are matched as they are written.
	TrustDomains []string
	// Providers are the extension providers that can be asked, by name. An error says why one
	// cannot. Policies with action CUSTOM that ask such a one, or one that is not here, deny
	// what their rules match.
	Providers map[string]error
	// Issuers are those whose tokens the workload accepts. A request principal that begins with one
	// and a slash is of this issuer, also where its subject has slashes.
	Issuers []string
	// JoinsHeaders is for Envoys before 1.36.5, and for 1.37.0. They join several headers of
	// one name before they compare them, so that a second header hides the first from a
	// DENY (CVE-2026-26308). The rules for them find a value among others, also in one
	// header with commas.
	JoinsHeaders bool
}

// Rules are the rules of one filter chain, by action, in the order in which Envoy has to
// ask them. It allows what no action denies.
type Rules struct {
	// Custom has the rules that say which requests a provider is asked about, sorted by
	// provider. Each needs a filter of RBAC and one of ext_authz behind it.
	Custom []Custom
	// Audit, Deny and Allow are empty where no policy has that action.
	Audit, Deny, Allow Set
	// Faults is what could not be translated, sorted by policy and rule. Such rules deny
	// what they could match, or allow nothing.
	Faults []PolicyError
}

// Set is the rules of one action.
type Set struct {
	// Enforced decides; nil means that the action has no policy that is in force.
	Enforced *rbacv3.RBAC
	// Shadow is only counted and written to metadata; nil means that nothing is tried out.
	Shadow *rbacv3.RBAC
	// ShadowStatPrefix begins the names of Shadow's statistics and metadata.
	ShadowStatPrefix string
}

// Custom is the rules of one extension provider. Its Enforced is nil: the provider decides.
type Custom struct {
	// Provider is the name of the extension provider.
	Provider string
	Set
	// Denied has the same rules as ones that deny, with names that say why, for a provider that
	// cannot be asked: it has its place instead of ext_authz. Otherwise it is nil.
	Denied *rbacv3.RBAC
}

// Asked matches the metadata that the rules of CUSTOM policies leave in an RBAC filter (such as
// "envoy.filters.http.rbac") when one of them matches: those of one provider, or of any if the
// name is empty. It is the filter_enabled_metadata of ext_authz. No provider is asked because of
// the rules of another whose name begins with its own, as it would be in Istio.
func Asked(filter, provider string) *matcherv3.MetadataMatcher {
	names := customPrefix
	if provider != "" {
		names += provider + "-ns["
	}
	return metadata(filter, []string{shadowCustom + shadowPolicy}, text(prefix(names))).GetMetadataMatcher()
}

// ProviderOf is the extension provider that a rule of CUSTOM asks, by the rule's name.
func ProviderOf(rule string) (string, bool) {
	rest, custom := strings.CutPrefix(rule, customPrefix)
	name, _, found := strings.Cut(rest, "-ns[")
	return name, custom && found
}

// PolicyError is a part of a policy that could not be translated. Where it stands, the policy
// denies.
type PolicyError struct {
	// Namespace and Name are the policy's.
	Namespace, Name string
	// Rule is the rule's index, or -1 for the policy as a whole.
	Rule int
	// Field is the field of the rule, as in the object, or a condition's key.
	Field string
	// Err is what is wrong with it.
	Err error
}

// Error says where the fault is, and what it is.
func (e PolicyError) Error() string {
	at := fmt.Sprintf("AuthorizationPolicy %s/%s", e.Namespace, e.Name)
	if e.Rule >= 0 {
		at += fmt.Sprintf(", rule %d", e.Rule)
	}
	if e.Field != "" {
		at += ", " + e.Field
	}
	return at + ": " + e.Err.Error()
}

// Unwrap returns what is wrong.
func (e PolicyError) Unwrap() error { return e.Err }

// InOrder returns the sets that are not empty, in the order in which Envoy has to ask them: of
// Custom those that deny because their provider cannot be asked, then Audit, Deny and Allow.
func (r Rules) InOrder() []Set {
	var out []Set
	for _, c := range r.Custom {
		out = append(out, Set{Enforced: c.Denied})
	}
	return slices.DeleteFunc(append(out, r.Audit, r.Deny, r.Allow), Set.Empty)
}

// Empty reports whether the action has no policy: it needs no filter.
func (s Set) Empty() bool { return s.Enforced == nil && s.Shadow == nil }

// HTTPFilter returns the configuration of the filter envoy.filters.http.rbac.
func (s Set) HTTPFilter() *httprbacv3.RBAC {
	return &httprbacv3.RBAC{Rules: s.Enforced, ShadowRules: s.Shadow, ShadowRulesStatPrefix: s.ShadowStatPrefix}
}

// NetworkFilter returns the configuration of the filter envoy.filters.network.rbac.
func (s Set) NetworkFilter() *networkrbacv3.RBAC {
	return &networkrbacv3.RBAC{
		Rules: s.Enforced, ShadowRules: s.Shadow, ShadowRulesStatPrefix: s.ShadowStatPrefix, StatPrefix: tcpStatPrefix,
	}
}

// HTTP translates policies for HTTP connection managers, as BuildHTTP of Istio's
// pilot/pkg/security/authz/builder.
func HTTP(policies []Policy, o Options) Rules { return translate(policies, o, false) }

// TCP translates policies for network filters, as BuildTCP of Istio's
// pilot/pkg/security/authz/builder. An ALLOW rule that speaks of HTTP allows nothing there.
// Other rules lose what they say of HTTP, and so match more.
func TCP(policies []Policy, o Options) Rules { return translate(policies, o, true) }

// RuleName is the name of a rule in Envoy's configuration, response details and metadata,
// but for CUSTOM. It is Istio's.
func RuleName(namespace, name string, rule int) string {
	return fmt.Sprintf("ns[%s]-policy[%s]-rule[%d]", namespace, name, rule)
}

// ParseRuleName reads the name of a rule, also those of CUSTOM.
func ParseRuleName(s string) (namespace, name string, rule int, ok bool) {
	if strings.HasPrefix(s, customPrefix) {
		if at := strings.LastIndex(s, "ns["); at >= 0 {
			s = strings.TrimSuffix(s[at:], noProvider)
		}
	}
	s, opened := strings.CutPrefix(s, "ns[")
	namespace, s, named := strings.Cut(s, "]-policy[")
	name, s, numbered := strings.Cut(s, "]-rule[")
	s, closed := strings.CutSuffix(s, "]")
	rule, err := strconv.Atoi(s)
	return namespace, name, rule, opened && named && numbered && closed && err == nil
}

func translate(policies []Policy, o Options, tcp bool) Rules {
	sorted := slices.Clone(policies)
	slices.SortStableFunc(sorted, func(a, b Policy) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	t := translator{options: o, issuers: newIssuers(o.Issuers), tcp: tcp, custom: map[string]*Custom{}, faulty: map[string]bool{}}
	for i, p := range sorted {
		twice := i > 0 && sameName(sorted[i-1], p) || i+1 < len(sorted) && sameName(p, sorted[i+1])
		t.policy(p, twice)
	}
	return t.finish()
}

func sameName(a, b Policy) bool { return a.Namespace == b.Namespace && a.Name == b.Name }

// finish gives the shadow rules their prefixes. A filter that has no shadow rules has the
// prefix of ALLOW, as in Istio.
func (t *translator) finish() Rules {
	t.rules.Audit.ShadowStatPrefix = shadowStatPrefix(t.rules.Audit.Shadow)
	t.rules.Deny.ShadowStatPrefix = shadowStatPrefix(t.rules.Deny.Shadow)
	t.rules.Allow.ShadowStatPrefix = shadowStatPrefix(t.rules.Allow.Shadow)
	for _, name := range slices.Sorted(maps.Keys(t.custom)) {
		c := *t.custom[name]
		c.ShadowStatPrefix = shadowCustom
		t.rules.Custom = append(t.rules.Custom, c)
	}
	return t.rules
}

func shadowStatPrefix(shadow *rbacv3.RBAC) string {
	switch shadow.GetAction() {
	case rbacv3.RBAC_ALLOW:
		return shadowAllow
	case rbacv3.RBAC_DENY:
		return shadowDeny
	default:
		return ""
	}
}
