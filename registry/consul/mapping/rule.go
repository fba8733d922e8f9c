package mapping

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Rule is what a person says of services by name. One rule counts for a service:
// the one whose pattern is exactly its name, else the first that matches.
type Rule struct {
	// Pattern is a name, or one with stars, each of which stays for any text:
	// "web", "web-*", "*". It is compared with the name as Consul has it. Services
	// outside the home namespace and partition are matched by
	// "NAMESPACE/NAME" and "PARTITION/NAMESPACE/NAME" alone.
	Pattern string
	// Namespace and ServiceAccount are the identity, instead of the templates'.
	Namespace, ServiceAccount string
	// Protocol is that of the port, whatever the registrations say.
	Protocol string
	// TLS is "istio" where every instance takes mTLS, "disabled" where none does
	// that does not say so itself; empty: as the instance says.
	TLS string
	// Port is the service's port; 0 means that of the registrations. An instance
	// without a port serves at this one.
	Port uint32
	// Name is what the service is called in the mesh, where its own name is no DNS
	// label or should not be used. Only for patterns without a star.
	Name string
	// FoldCase takes names with capital letters, which are not taken otherwise:
	// "Web" would have the host of "web".
	FoldCase bool
	// TrustMetadata lets registrations give what only settings give otherwise:
	// namespace, service account and virtual addresses.
	TrustMetadata bool
	// Skip leaves the service out.
	Skip bool
}

// The values of Rule.TLS.
const (
	tlsIstio    = "istio"
	tlsDisabled = "disabled"
)

// The keys of ParseRule.
const (
	ruleNamespace = "namespace"
	ruleAccount   = "service-account"
	ruleProtocol  = "protocol"
	ruleTLS       = "tls"
	rulePort      = "port"
	ruleName      = "name"
	ruleFoldCase  = "fold-case"
	ruleTrust     = "trust-metadata"
	ruleSkip      = "skip"
)

const ruleForm = `write PATTERN:key=value,…, such as "web-*:protocol=http,tls=istio"; the keys are ` +
	ruleNamespace + ", " + ruleAccount + ", " + ruleProtocol + ", " + ruleTLS + ", " + rulePort + ", " + ruleName + ", " +
	ruleFoldCase + ", " + ruleTrust + " and " + ruleSkip

// ParseRule reads PATTERN:key=value,key=value,…
func ParseRule(s string) (Rule, error) {
	pattern, rest, found := strings.Cut(s, ":")
	if !found || pattern == "" || rest == "" {
		return Rule{}, fmt.Errorf("reading the rule %q: %s", s, ruleForm)
	}
	r := Rule{Pattern: pattern}
	seen := map[string]bool{}
	for setting := range strings.SplitSeq(rest, ",") {
		key, value, _ := strings.Cut(setting, "=")
		if seen[key] {
			return Rule{}, fmt.Errorf("reading the rule %q: %q is there twice", s, key)
		}
		seen[key] = true
		if err := r.set(key, value); err != nil {
			return Rule{}, fmt.Errorf("reading the rule %q: %w", s, err)
		}
	}
	if err := r.check(); err != nil {
		return Rule{}, fmt.Errorf("reading the rule %q: %w", s, err)
	}
	return r, nil
}

func (r *Rule) set(key, value string) error {
	if value == "" && key != "" {
		return fmt.Errorf("%q has no value; write %s=…", key, key)
	}
	var err error
	switch key {
	case ruleNamespace:
		r.Namespace = value
	case ruleAccount:
		r.ServiceAccount = value
	case ruleProtocol:
		r.Protocol = value
	case ruleTLS:
		r.TLS = value
	case ruleName:
		r.Name = value
	case rulePort:
		port, numErr := strconv.ParseUint(value, 10, 16)
		if numErr != nil || port == 0 {
			return fmt.Errorf("port %q is none; write a number from 1 to 65535", value)
		}
		r.Port = uint32(port)
	case ruleFoldCase:
		r.FoldCase, err = yes(key, value)
	case ruleTrust:
		r.TrustMetadata, err = yes(key, value)
	case ruleSkip:
		r.Skip, err = yes(key, value)
	default:
		return fmt.Errorf("%q is no key; %s", key, ruleForm)
	}
	return err
}

func yes(key, value string) (bool, error) {
	switch value {
	case "true":
		return true, nil
	case "false":
		return false, nil
	default:
		return false, fmt.Errorf("%s=%s is neither; write %s=true or %s=false", key, value, key, key)
	}
}

// check judges a rule, also one that no text was read for.
func (r *Rule) check() error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	exact := !strings.Contains(r.Pattern, "*")
	switch parts := strings.Split(r.Pattern, "/"); {
	case slices.Contains(parts, ""):
		add(`the pattern %q has an empty part; write a service's name, or "*" for all`, r.Pattern)
	case len(parts) > 3:
		add("the pattern %q has too many slashes; write NAME, NAMESPACE/NAME or PARTITION/NAMESPACE/NAME", r.Pattern)
	}
	if r.Namespace != "" && !isDNSLabel(r.Namespace) {
		add("namespace %q is none; use lower case letters, digits and '-'", r.Namespace)
	}
	if r.ServiceAccount != "" && !isSubdomain(r.ServiceAccount) {
		add("service account %q is none; use lower case letters, digits, '-' and '.'", r.ServiceAccount)
	}
	if isReserved(r.Namespace, r.ServiceAccount) {
		add("%s/%s is the control plane's own identity; choose another", r.Namespace, r.ServiceAccount)
	}
	if _, known := parseProtocol(r.Protocol); r.Protocol != "" && !known {
		add("protocol %q is unknown; write one of %s", r.Protocol, protocolNames())
	}
	if r.TLS != "" && r.TLS != tlsIstio && r.TLS != tlsDisabled {
		add("tls=%s is unknown; write tls=istio where the instances take mTLS, tls=disabled where they do not", r.TLS)
	}
	if r.Port > maxPort {
		add("port %d is none; write a number from 1 to 65535", r.Port)
	}
	if r.Name != "" && !isDNSLabel(r.Name) {
		add("name %q is none; use lower case letters, digits and '-'", r.Name)
	}
	if r.Name != "" && !exact {
		add("name=%s would give one name to all that %q matches; write a pattern without '*'", r.Name, r.Pattern)
	}
	return errors.Join(errs...)
}

// ruleSet finds the rule of a service. Its names are whole ones,
// PARTITION/NAMESPACE/NAME, and so are the patterns.
type ruleSet struct {
	exact map[string]*Rule
	globs []glob
	// given are the names that rules give, and the pattern of the service that
	// has each.
	given map[string]string
}

type glob struct {
	pattern string
	rule    *Rule
}

// newRuleSet checks rules. home is the partition and namespace of patterns that
// name none, each with a slash behind it.
func newRuleSet(list []Rule, homePartition, homeNamespace string) (ruleSet, error) {
	set := ruleSet{exact: map[string]*Rule{}, given: map[string]string{}}
	var errs []error
	for i := range list {
		r := list[i]
		if err := r.check(); err != nil {
			errs = append(errs, fmt.Errorf("rule for %q: %w", r.Pattern, err))
			continue
		}
		whole := r.Pattern
		switch strings.Count(whole, "/") {
		case 0:
			whole = homePartition + "/" + homeNamespace + "/" + whole
		case 1:
			whole = homePartition + "/" + whole
		}
		if strings.Contains(whole, "*") {
			set.globs = append(set.globs, glob{whole, &r})
			continue
		}
		if set.exact[whole] != nil {
			errs = append(errs, fmt.Errorf("two rules are for %q; write one with all its settings", r.Pattern))
			continue
		}
		set.exact[whole] = &r
		name := strings.ToLower(r.last())
		switch {
		case r.Name != "":
			name = r.Name
		case !r.FoldCase || name == r.last():
			continue
		}
		name = placeOf(whole) + name
		if other, taken := set.given[name]; taken {
			errs = append(errs, fmt.Errorf("the rules for %q and %q give the same name %q; choose another for one of them", other, whole, name[len(placeOf(name)):]))
		}
		set.given[name] = whole
	}
	return set, errors.Join(errs...)
}

// last is the service's part of the pattern.
func (r *Rule) last() string { return r.Pattern[strings.LastIndex(r.Pattern, "/")+1:] }

// placeOf is the partition and namespace of a whole name, with their slashes.
func placeOf(whole string) string { return whole[:strings.LastIndex(whole, "/")+1] }

// of finds the rule for a service by its whole name. exact says that the rule
// names the service. The Rule is never nil.
func (s *ruleSet) of(whole string) (rule *Rule, exact bool) {
	if r := s.exact[whole]; r != nil {
		return r, true
	}
	for _, g := range s.globs {
		if matches(g.pattern, whole) {
			return g.rule, false
		}
	}
	return &Rule{}, false
}

// ownerOf tells which other service in the place of this one a rule gives a name
// to.
func (s *ruleSet) ownerOf(whole, name string) (owner string, taken bool) {
	owner, taken = s.given[placeOf(whole)+name]
	return owner, taken && owner != whole
}

// matches compares a pattern, in which a star stays for any text without a slash.
// Its time is at most the product of both lengths: names are other people's.
func matches(pattern, name string) bool {
	star, from := -1, 0 // the last star, and where in name it ends for now
	p, n := 0, 0
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, from = p, n
			p++
		case p < len(pattern) && pattern[p] == name[n]:
			p++
			n++
		case star >= 0 && name[from] != '/':
			from++
			p, n = star+1, from
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// isReserved reports whether an identity is the control plane's own.
func isReserved(namespace, account string) bool {
	return namespace == reservedNamespace && account == "fairlead"
}

// reservedNamespace is where the control plane has its identity, and where
// policies hold for the whole mesh.
const reservedNamespace = "istio-system"

// protocolNames are those that people may write.
func protocolNames() string {
	names := make([]string, 0, len(protocols()))
	for _, p := range protocols() {
		names = append(names, portName(p))
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func protocols() []mesh.Protocol {
	return []mesh.Protocol{
		mesh.HTTP, mesh.HTTPProxy, mesh.HTTP2, mesh.GRPC, mesh.GRPCWeb, mesh.HTTPS, mesh.TLS, mesh.TCP, mesh.UDP,
		mesh.Mongo, mesh.Redis, mesh.MySQL,
	}
}

// parseProtocol reads a name of Consul's or Istio's, in any case.
func parseProtocol(name string) (mesh.Protocol, bool) {
	p := mesh.Protocol(strings.ReplaceAll(strings.ToUpper(name), "-", "_"))
	switch p {
	case "GRPC_WEB":
		return mesh.GRPCWeb, true
	default:
		return p, slices.Contains(protocols(), p)
	}
}

// portName is the name of a port with that protocol.
func portName(p mesh.Protocol) string {
	return strings.ReplaceAll(strings.ToLower(string(cmp.Or(p, mesh.TCP))), "_", "-")
}
