package consultest

import (
	"errors"
	"net/http"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// ReadRules are the least that a reader of the catalog needs: every service and
// every node, to read.
const ReadRules = `service_prefix "" { policy = "read" }
node_prefix "" { policy = "read" }`

// Token is a token of a cluster with ACLs.
type Token struct {
	// Accessor names it.
	Accessor string
	// Secret is what a client shows.
	Secret string
}

// CreateToken makes a token that some rules, in Consul's language, hold for, and
// waits until every server that runs knows it.
func (c *Cluster) CreateToken(rules string) Token {
	c.tb.Helper()
	t, err := c.createToken(rules, "")
	if err != nil {
		c.tb.Fatal(err)
	}
	// An agent that asks a server which has not heard of it yet remembers that for
	// half a minute.
	for _, a := range c.Servers {
		if a.Running() {
			envoytest.Eventually(c.tb, patience, func() error {
				_, _, err := a.ClientWith(t.Secret).ACL().TokenReadSelf(&api.QueryOptions{AllowStale: true})
				return err
			})
		}
	}
	return t
}

// ReadToken makes a token for [ReadRules].
func (c *Cluster) ReadToken() Token {
	c.tb.Helper()
	return c.CreateToken(ReadRules)
}

// RevokeToken deletes a token.
func (c *Cluster) RevokeToken(t Token) {
	c.tb.Helper()
	envoytest.Eventually(c.tb, patience, func() error {
		_, err := c.Client().ACL().TokenDelete(t.Accessor, nil)
		if status := (api.StatusError{}); errors.As(err, &status) && status.Code == http.StatusNotFound {
			return nil // an earlier try did it, and its answer was lost
		}
		return err
	})
}

func (c *Cluster) createToken(rules, secret string) (Token, error) {
	if !c.options.ACL {
		return Token{}, errNoACL
	}
	acl := c.Client().ACL()
	policy, _, err := acl.PolicyCreate(&api.ACLPolicy{Name: "p-" + nodeID(), Rules: rules}, nil)
	if err != nil {
		return Token{}, err
	}
	t, _, err := acl.TokenCreate(&api.ACLToken{SecretID: secret, Policies: []*api.ACLLink{{ID: policy.ID}}}, nil)
	if err != nil {
		return Token{}, err
	}
	return Token{t.AccessorID, t.SecretID}, nil
}

// agentTokens makes the token that the servers register themselves with, unless
// the cluster has it from before.
func (c *Cluster) agentTokens() {
	c.tb.Helper()
	if !c.options.ACL {
		return
	}
	envoytest.Eventually(c.tb, patience, func() error {
		_, err := c.createToken("node_prefix \"\" { policy = \"write\" }\n"+ReadRules, c.agentToken)
		if err != nil && strings.Contains(err.Error(), "already in use") {
			return nil
		}
		return err
	})
}
