package authz

import (
	"fmt"
	"strings"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	security "istio.io/api/security/v1beta1"
)

// Keys of conditions, as Istio's pilot/pkg/security/authz/model names them. Those that are
// followed by a name in brackets are without it.
const (
	keyHeader         = "request.headers"
	keySourceIP       = "source.ip"
	keyRemoteIP       = "remote.ip"
	keyNamespace      = "source.namespace"
	keyServiceAccount = "source.serviceAccount"
	keyTrustDomain    = "source.trustDomain"
	keyPrincipal      = "source.principal"
	keyRequest        = "request.auth.principal"
	keyAudiences      = "request.auth.audiences"
	keyPresenter      = "request.auth.presenter"
	keyClaims         = "request.auth.claims"
	keyDestinationIP  = "destination.ip"
	keyPort           = "destination.port"
	keySNI            = "connection.sni"
	keyMetadata       = "experimental.envoy.filters."
)

type (
	permissionTerm = term[*rbacv3.Permission]
	principalTerm  = term[*rbacv3.Principal]
)

// operation returns the terms of an operation, in Istio's order.
func (r *rule) operation(o *security.Operation) []permissionTerm {
	return present([]permissionTerm{
		{field: "hosts", values: o.GetHosts(), except: o.GetNotHosts(), http: true, match: each(permissions, hostPermission)},
		{field: "methods", values: o.GetMethods(), except: o.GetNotMethods(), http: true, match: each(permissions, methodPermission)},
		{field: "paths", values: o.GetPaths(), except: o.GetNotPaths(), http: true, match: each(permissions, pathPermission)},
		{field: "ports", values: o.GetPorts(), except: o.GetNotPorts(), match: each(permissions, portPermission)},
	})
}

// source returns the terms of a source, in Istio's order.
func (r *rule) source(s *security.Source) []principalTerm {
	return present([]principalTerm{
		r.principal("principals", s.GetPrincipals(), s.GetNotPrincipals()),
		{field: "requestPrincipals", values: s.GetRequestPrincipals(), except: s.GetNotRequestPrincipals(), http: true, match: r.requestPrincipal},
		r.serviceAccount("serviceAccounts", s.GetServiceAccounts(), s.GetNotServiceAccounts()),
		r.trustDomain("trustDomains", s.GetTrustDomains(), s.GetNotTrustDomains()),
		{field: "namespaces", values: s.GetNamespaces(), except: s.GetNotNamespaces(), match: each(principals, namespacePrincipal)},
		{field: "remoteIpBlocks", values: s.GetRemoteIpBlocks(), except: s.GetNotRemoteIpBlocks(), match: each(principals, remoteIPPrincipal)},
		{field: "ipBlocks", values: s.GetIpBlocks(), except: s.GetNotIpBlocks(), match: each(principals, sourceIPPrincipal)},
	})
}

// present leaves out what the rule does not name.
func present[T any](terms []term[T]) []term[T] {
	var out []term[T]
	for _, t := range terms {
		if len(t.values)+len(t.except) > 0 {
			out = append(out, t)
		}
	}
	return out
}

// conditions returns the terms of a rule's conditions: some are about the operation, others
// about the source. All of them hold for every operation and every source of the rule.
func (r *rule) conditions(when []*security.Condition) ([]permissionTerm, []principalTerm) {
	var to []permissionTerm
	var from []principalTerm
	for _, c := range when {
		if len(c.GetValues())+len(c.GetNotValues()) == 0 {
			r.fail(c.GetKey(), errNoValues)
			continue
		}
		if t, ok := r.permissionCondition(c); ok {
			to = append(to, t)
		} else if t, ok := r.principalCondition(c); ok {
			from = append(from, t)
		} else {
			r.fail(c.GetKey(), errAttribute)
		}
	}
	return to, from
}

func (r *rule) permissionCondition(c *security.Condition) (permissionTerm, bool) {
	t := permissionTerm{field: c.GetKey(), values: c.GetValues(), except: c.GetNotValues()}
	switch key := c.GetKey(); {
	case key == keyDestinationIP:
		t.match = each(permissions, destinationIPPermission)
	case key == keyPort:
		t.match = each(permissions, portPermission)
	case key == keySNI:
		t.match = each(permissions, sniPermission)
	case strings.HasPrefix(key, keyMetadata):
		t.match = metadataPermission(key)
	default:
		return t, false
	}
	return t, true
}

func (r *rule) principalCondition(c *security.Condition) (principalTerm, bool) {
	values, except := c.GetValues(), c.GetNotValues()
	t := principalTerm{field: c.GetKey(), values: values, except: except}
	switch key := c.GetKey(); {
	case key == keySourceIP:
		t.match = each(principals, sourceIPPrincipal)
	case key == keyRemoteIP:
		t.match = each(principals, remoteIPPrincipal)
	case key == keyNamespace:
		t.match = each(principals, namespacePrincipal)
	case key == keyServiceAccount:
		t = r.serviceAccount(key, values, except)
	case key == keyTrustDomain:
		t = r.trustDomain(key, values, except)
	case key == keyPrincipal:
		t = r.principal(key, values, except)
	case key == keyRequest:
		t.http, t.match = true, r.requestPrincipal
	case key == keyAudiences:
		t.http, t.match = true, claimPrincipal("aud")
	case key == keyPresenter:
		t.http, t.match = true, claimPrincipal("azp")
	case strings.HasPrefix(key, keyHeader):
		bracket, joins := strings.TrimPrefix(key, keyHeader), r.options.JoinsHeaders
		t.http = true
		t.match = headerPrincipal(bracket, joins && !r.allows)
		t.matchExcept = headerPrincipal(bracket, joins && r.allows)
	case strings.HasPrefix(key, keyClaims):
		t.http, t.match = true, nestedClaimPrincipal(strings.TrimPrefix(key, keyClaims))
	default:
		return t, false
	}
	return t, true
}

func (r *rule) principal(field string, values, except []string) principalTerm {
	tds := r.options.TrustDomains
	return principalTerm{
		field: field, values: withAliases(values, tds), except: withAliases(except, tds), match: each(principals, peerPrincipal),
	}
}

func (r *rule) trustDomain(field string, values, except []string) principalTerm {
	tds := r.options.TrustDomains
	return principalTerm{
		field: field, values: domainsWithAliases(values, tds), except: domainsWithAliases(except, tds),
		match: each(principals, trustDomainPrincipal),
	}
}

// serviceAccount matches accounts without a namespace with those of the policy's.
func (r *rule) serviceAccount(field string, values, except []string) principalTerm {
	return principalTerm{field: field, values: values, except: except, match: each(principals, func(v string) (*rbacv3.Principal, error) {
		return serviceAccountPrincipal(r.policy.Namespace, v)
	})}
}

// bracketed returns the name in brackets that follows the key of a condition.
func bracketed(s string) (string, error) {
	name, opened := strings.CutPrefix(s, "[")
	name, closed := strings.CutSuffix(name, "]")
	if !opened || !closed || name == "" {
		return "", fmt.Errorf("%q is not a name in brackets", s)
	}
	return name, nil
}

// nested returns the names in a row of brackets. A name may have brackets in it only where
// it is the only one: [a[b]] is the name "a[b]", as in Istio.
func nested(s string) ([]string, error) {
	var names []string
	for rest := s; rest != ""; {
		name, after, closed := strings.Cut(strings.TrimPrefix(rest, "["), "]")
		if !closed || rest[0] != '[' || strings.Contains(name, "[") {
			name, err := bracketed(s)
			return []string{name}, err
		}
		names = append(names, name)
		rest = after
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%q is not a name in brackets", s)
	}
	return names, nil
}
