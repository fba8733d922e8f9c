package analysis

import (
	"fmt"

	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// policyAnalyzers are the checks of AuthorizationPolicies. Each of their codes has cases both
// ways in testdata/policies.
func policyAnalyzers() []analyzer {
	return []analyzer{
		{CodeSelectsNothing, idlePolicies},
		{CodeUnknownIdentity, unknownIdentities},
		{CodePathSlash, pathsWithoutSlash},
		{CodePathNever, impossiblePaths},
		{CodeNeverOnTCP, rulesForTCP},
		{CodeNoClaims, claimsWithoutTokens},
		{CodeShadowed, shadowedRules},
		{CodeLongLived, longLivedPorts},
	}
}

// policySet is the AuthorizationPolicies that select workloads by their labels.
type policySet struct {
	// all are the valid ones, in the order of the objects.
	all []*policy
	// authenticated finds the RequestAuthentications that check tokens, by namespace.
	authenticated map[string]*bySelector[struct{}]
	// denying finds the DENY policies in force, by namespace.
	denying map[string]*bySelector[*policy]
}

// policy is an AuthorizationPolicy, and what it is for.
type policy struct {
	object    *manifest.Object
	spec      *security.AuthorizationPolicy
	selection *selection
	// field is where it says what it is for.
	field string
	// inForce says that proxies have it, decides that it is no dry run besides.
	inForce, decides bool
}

// policyFacts is what is known of the workloads of a selection.
type policyFacts struct {
	// ports are those of all workloads together; nil until they were asked for.
	ports *portFacts
	// noToken names the workloads without a RequestAuthentication; nil until it was asked for.
	noToken *string
	// allowsTCP says that an ALLOW rule in force speaks of nothing but what TCP shows. denied
	// are workloads with nothing but TCP ports for which no rule does.
	allowsTCP bool
	denied    []*workload
}

func newPolicySet(w *meshIndex) *policySet {
	x := &policySet{authenticated: map[string]*bySelector[struct{}]{}, denying: map[string]*bySelector[*policy]{}}
	for o, spec := range specs[*security.RequestAuthentication](w) {
		if len(spec.GetJwtRules()) > 0 && !attached(spec) {
			in(x.authenticated, o.Meta.Namespace).add(spec.GetSelector().GetMatchLabels(), struct{}{})
		}
	}
	seen := map[mesh.Key]bool{}
	for o, spec := range specs[*security.AuthorizationPolicy](w) {
		if attached(spec) || seen[o.Meta.Key] { // of two objects of one name, the first counts
			continue
		}
		seen[o.Meta.Key] = true
		labels := spec.GetSelector().GetMatchLabels()
		p := &policy{object: o, spec: spec, selection: w.chosen(o, labels), field: "spec"}
		if len(labels) > 0 {
			p.field = "spec.selector.matchLabels"
		}
		if f := o.Fragment(); f != nil && len(f.AuthorizationPolicies) > 0 {
			p.inForce, p.decides = true, !f.AuthorizationPolicies[0].DryRun
		}
		x.all = append(x.all, p)
		if p.decides && spec.GetAction() == security.AuthorizationPolicy_DENY {
			in(x.denying, o.Meta.Namespace).add(labels, p)
		}
	}
	return x
}

// in returns the index of a namespace, and makes it if there is none.
func in[T any](all map[string]*bySelector[T], namespace string) *bySelector[T] {
	if all[namespace] == nil {
		all[namespace] = &bySelector[T]{}
	}
	return all[namespace]
}

// attached reports whether a policy is for gateways or services of Kubernetes only.
func attached(spec interface {
	GetTargetRef() *typev1beta1.PolicyTargetReference
	GetTargetRefs() []*typev1beta1.PolicyTargetReference
},
) bool {
	return spec.GetTargetRef() != nil || len(spec.GetTargetRefs()) > 0
}

// rules yields the rules of a policy and their fields.
func (p *policy) rules(yield func(r *security.Rule, field string) bool) {
	for i, r := range p.spec.GetRules() {
		if r != nil && !yield(r, fmt.Sprintf("spec.rules[%d]", i)) {
			return
		}
	}
}

func (p *policy) allows() bool { return p.spec.GetAction() == security.AuthorizationPolicy_ALLOW }

// list is a list of values of a rule, and the field that it stands in.
type list struct {
	// name is that of the field, or the key of a condition.
	name, field string
	values      []string
	// not says that the values are excluded.
	not bool
}

// lists yields the lists of a rule that have values.
func lists(r *security.Rule, field string) func(yield func(list) bool) {
	return func(yield func(list) bool) {
		for i, f := range r.GetFrom() {
			if !yieldLists(sourceLists(f.GetSource()), fmt.Sprintf("%s.from[%d].source.", field, i), yield) {
				return
			}
		}
		for i, t := range r.GetTo() {
			if !yieldLists(operationLists(t.GetOperation()), fmt.Sprintf("%s.to[%d].operation.", field, i), yield) {
				return
			}
		}
		for i, c := range r.GetWhen() {
			at := fmt.Sprintf("%s.when[%d].", field, i)
			for _, l := range []list{
				{name: c.GetKey(), field: at + "values", values: c.GetValues()},
				{name: c.GetKey(), field: at + "notValues", values: c.GetNotValues(), not: true},
			} {
				if len(l.values) > 0 && !yield(l) {
					return
				}
			}
		}
	}
}

func yieldLists(all []pair, field string, yield func(list) bool) bool {
	for _, p := range all {
		if len(p.values) > 0 && !yield(list{name: p.name, field: field + p.name, values: p.values}) {
			return false
		}
		if len(p.except) > 0 && !yield(list{name: p.name, field: field + p.notName, values: p.except, not: true}) {
			return false
		}
	}
	return true
}

// pair is what an attribute of a request has to be, and what it must not be.
type pair struct {
	name, notName  string
	values, except []string
}

func sourceLists(s *security.Source) []pair {
	return []pair{
		{"principals", "notPrincipals", s.GetPrincipals(), s.GetNotPrincipals()},
		{"requestPrincipals", "notRequestPrincipals", s.GetRequestPrincipals(), s.GetNotRequestPrincipals()},
		{"namespaces", "notNamespaces", s.GetNamespaces(), s.GetNotNamespaces()},
		{"serviceAccounts", "notServiceAccounts", s.GetServiceAccounts(), s.GetNotServiceAccounts()},
		{"trustDomains", "notTrustDomains", s.GetTrustDomains(), s.GetNotTrustDomains()},
		{"ipBlocks", "notIpBlocks", s.GetIpBlocks(), s.GetNotIpBlocks()},
		{"remoteIpBlocks", "notRemoteIpBlocks", s.GetRemoteIpBlocks(), s.GetNotRemoteIpBlocks()},
	}
}

func operationLists(o *security.Operation) []pair {
	return []pair{
		{"hosts", "notHosts", o.GetHosts(), o.GetNotHosts()},
		{"methods", "notMethods", o.GetMethods(), o.GetNotMethods()},
		{"paths", "notPaths", o.GetPaths(), o.GetNotPaths()},
		{"ports", "notPorts", o.GetPorts(), o.GetNotPorts()},
	}
}

// idlePolicies warns of a policy without a selector in a namespace without workloads. Those
// with a selector are among all objects with one.
func idlePolicies(w *meshIndex, r *report) {
	for _, p := range w.policies.all {
		s := p.selection
		if len(p.spec.GetSelector().GetMatchLabels()) > 0 || !s.sure || len(s.workloads) > 0 || w.in.OtherSources {
			continue
		}
		if s.scope == "" {
			r.warn(place{p.object, "metadata.namespace"}, "the mesh has no workload, so the policy has no effect")
			continue
		}
		r.warn(place{p.object, "metadata.namespace"}, "namespace %q has no workload, so the policy has no effect; move it to the namespace of the workloads, or to the root namespace %q, whose policies are for all",
			s.scope, w.root)
	}
}
