package authz

import (
	"errors"
	"fmt"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	security "istio.io/api/security/v1beta1"
)

var (
	errTwice     = errors.New("there are two policies of this name; all is denied")
	errAction    = errors.New("the action is unknown; all is denied")
	errProvider  = errors.New("no extension provider of this name")
	errNoRule    = errors.New("the rule is null")
	errNoSource  = errors.New("there is no source")
	errNoTarget  = errors.New("there is no operation")
	errNoValues  = errors.New("there are no values")
	errAttribute = errors.New("unknown attribute")
)

// translator makes the rules of one filter chain.
type translator struct {
	options Options
	issuers issuers
	// tcp says that the rules are for a network filter, which sees no requests.
	tcp   bool
	rules Rules
	// custom are the sets of CUSTOM's providers.
	custom map[string]*Custom
	// faulty are the faults so far, by what they say.
	faulty map[string]bool
}

// policy adds one policy. twice says that there is another of its name.
func (t *translator) policy(p Policy, twice bool) {
	switch action := p.Spec.GetAction(); {
	case twice:
		t.denyAll(p, errTwice)
	case action == security.AuthorizationPolicy_ALLOW:
		t.add(t.rules.Allow.of(rbacv3.RBAC_ALLOW, p.DryRun), p, "")
	case action == security.AuthorizationPolicy_DENY:
		t.add(t.rules.Deny.of(rbacv3.RBAC_DENY, p.DryRun), p, "")
	case action == security.AuthorizationPolicy_AUDIT:
		t.add(t.rules.Audit.of(rbacv3.RBAC_LOG, p.DryRun), p, "")
	case action == security.AuthorizationPolicy_CUSTOM:
		t.askProvider(p)
	default:
		t.denyAll(p, errAction)
	}
}

// of returns the enforced rules or the shadow rules, and makes them if there are none yet.
func (s *Set) of(action rbacv3.RBAC_Action, shadow bool) *rbacv3.RBAC {
	rules := &s.Enforced
	if shadow {
		rules = &s.Shadow
	}
	if *rules == nil {
		*rules = &rbacv3.RBAC{Action: action, Policies: map[string]*rbacv3.Policy{}}
	}
	return *rules
}

// askProvider adds a policy with action CUSTOM. Its rules are shadow rules: Envoy writes to
// the metadata which of them matches, and ext_authz asks the provider if one does.
func (t *translator) askProvider(p Policy) {
	provider := p.Spec.GetProvider().GetName()
	err, known := t.options.Providers[provider]
	if !known {
		err = errProvider
	}
	if err != nil {
		t.fault(p, -1, "provider "+provider, err)
	}
	c := t.custom[provider]
	if c == nil {
		c = &Custom{Provider: provider}
		t.custom[provider] = c
	}
	rules := c.of(rbacv3.RBAC_DENY, true)
	t.add(rules, p, customPrefix+provider+"-")
	if err == nil {
		return
	}
	if c.Denied == nil {
		c.Denied = &rbacv3.RBAC{Action: rbacv3.RBAC_DENY, Policies: map[string]*rbacv3.Policy{}}
	}
	for name, rule := range rules.GetPolicies() {
		c.Denied.Policies[name+noProvider] = rule
	}
}

// denyAll denies every request, because of the policy.
func (t *translator) denyAll(p Policy, err error) {
	t.fault(p, -1, "", err)
	t.rules.Deny.of(rbacv3.RBAC_DENY, false).Policies[RuleName(p.Namespace, p.Name, 0)] = matchAlways()
}

// add translates the policy's rules. A policy without rules gets one that never matches, so
// that its name is in the configuration.
func (t *translator) add(to *rbacv3.RBAC, p Policy, prefix string) {
	for i, spec := range p.Spec.GetRules() {
		r := rule{translator: t, policy: p, index: i, allows: to.GetAction() == rbacv3.RBAC_ALLOW}
		if made := r.translate(spec); made != nil {
			to.Policies[prefix+RuleName(p.Namespace, p.Name, i)] = made
		}
	}
	if len(p.Spec.GetRules()) == 0 {
		to.Policies[prefix+RuleName(p.Namespace, p.Name, 0)] = matchNever()
	}
}

// fault reports a fault once: a condition is translated for each operation or source of its
// rule.
func (t *translator) fault(p Policy, index int, field string, err error) {
	f := PolicyError{Namespace: p.Namespace, Name: p.Name, Rule: index, Field: field, Err: err}
	if key := f.Error(); !t.faulty[key] {
		t.faulty[key] = true
		t.rules.Faults = append(t.rules.Faults, f)
	}
}

// rule translates one rule of a policy.
type rule struct {
	*translator
	policy Policy
	index  int
	// allows says that the action is ALLOW. What cannot be translated, and what a TCP port
	// does not show, then leaves the whole rule out. With the other actions it leaves out
	// the list that it stands in, so that the rule matches more.
	allows bool
	// leftOut says that something was left out.
	leftOut bool
}

// translate returns nil for a rule that allows nothing here.
func (r *rule) translate(spec *security.Rule) *rbacv3.Policy {
	if spec == nil {
		return r.failed(errNoRule)
	}
	to, from := r.conditions(spec.GetWhen())
	out := &rbacv3.Policy{}
	for _, target := range spec.GetTo() {
		terms := r.operation(target.GetOperation())
		if len(terms) == 0 {
			r.fail("to", errNoTarget)
		}
		out.Permissions = append(out.Permissions, conjunction(r, permissions, append(terms, to...)))
	}
	if len(spec.GetTo()) == 0 {
		out.Permissions = append(out.Permissions, conjunction(r, permissions, to))
	}
	for _, source := range spec.GetFrom() {
		terms := r.source(source.GetSource())
		if len(terms) == 0 {
			r.fail("from", errNoSource)
		}
		out.Principals = append(out.Principals, conjunction(r, principals, append(terms, from...)))
	}
	if len(spec.GetFrom()) == 0 {
		out.Principals = append(out.Principals, conjunction(r, principals, from))
	}
	if r.allows && r.leftOut {
		return nil
	}
	if err := out.ValidateAll(); err != nil {
		return r.failed(fmt.Errorf("translating for Envoy: %w", err))
	}
	return out
}

// fail says that a list of the rule was left out because of err.
func (r *rule) fail(field string, err error) {
	r.leftOut = true
	r.fault(r.policy, r.index, field, err)
}

// failed stands for a rule of which nothing could be translated.
func (r *rule) failed(err error) *rbacv3.Policy {
	r.fail("", err)
	if r.allows {
		return nil
	}
	return matchAlways()
}

// term is a list of values, and of values that must not be, which one attribute of a
// request is matched with.
type term[T any] struct {
	// field is the field of the rule, or the key of the condition.
	field          string
	values, except []string
	// http says that only requests have the attribute.
	http bool
	// match makes what matches any of the values. matchExcept is for those that must not
	// be; nil means that it is match.
	match, matchExcept func(values []string) (T, error)
}

// logic puts permissions or principals together.
type logic[T any] struct {
	any     func() T
	and, or func([]T) T
	not     func(T) T
}

// conjunction is what matches all terms.
func conjunction[T any](r *rule, l logic[T], terms []term[T]) T {
	var all []T
	for _, t := range terms {
		if t.http && r.tcp {
			r.leftOut = true
			continue
		}
		if len(t.values) > 0 {
			if made, err := t.match(t.values); err != nil {
				r.fail(t.field, err)
			} else {
				all = append(all, made)
			}
		}
		if len(t.except) > 0 {
			match := t.match
			if t.matchExcept != nil {
				match = t.matchExcept
			}
			if made, err := match(t.except); err != nil {
				r.fail(t.field, err)
			} else {
				all = append(all, l.not(made))
			}
		}
	}
	if len(all) == 0 {
		all = append(all, l.any())
	}
	return l.and(all)
}

// each makes a matcher that matches one value match any of several.
func each[T any](l logic[T], one func(value string) (T, error)) func([]string) (T, error) {
	return func(values []string) (T, error) {
		all := make([]T, 0, len(values))
		for _, v := range values {
			made, err := one(v)
			if err != nil {
				return made, err
			}
			all = append(all, made)
		}
		return l.or(all), nil
	}
}
