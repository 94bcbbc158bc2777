(** * Answers that repeat others

    What a search may leave out: answers that repeat the bindings of an earlier one. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine BigStep Tabling
  Visits.

Section Repetitions.
Context {Δ : Domain} {T : Type} {Σ : Structure T}.

(** Answers with the same values at the locations that were there when [n] was next. *)
Definition same_known (n : nat) (a b : answer T) : Prop :=
  forall l, match l with LFresh m => m < n | LFree _ => True end ->
    get (fst a) l = get (fst b) l.

Lemma same_known_less n m a b : n <= m -> same_known m a b -> same_known n a b.
Proof. intros L H l B. apply H. destruct l; auto. lia. Qed.

Lemma same_known_sym n a b : same_known n a b -> same_known n b a.
Proof. intros H l B. symmetry. now apply H. Qed.

Lemma same_known_trans n a b c : same_known n a b -> same_known n b c -> same_known n a c.
Proof. intros H H' l B. rewrite (H l B). now apply H'. Qed.

(** ** The same answers, without some repetitions *)

Definition same_bindings (a b : answer T) : Prop :=
  forall x, get (fst a) (LFree x) = get (fst b) (LFree x).

Definition same_visits (v v' : list T) : Prop := forall t, In t v <-> In t v'.

(** [shorter same S r o]: but for answers that are the same as one before, or as one of [S], [o] is [r].
    Those that are in both visit the same operators. *)
Inductive shorter (same : answer T -> answer T -> Prop)
    : list (answer T) -> list (answer T) -> list (answer T) -> Prop :=
| S_nil S : shorter same S [] []
| S_keep S a b r o :
    same a b -> same_visits (snd a) (snd b) -> shorter same (a :: S) r o ->
    shorter same S (a :: r) (b :: o)
| S_drop S a s r o : In s S -> same s a -> shorter same S r o -> shorter same S (a :: r) o
| S_again S b s r o : In s S -> same s b -> shorter same S r o -> shorter same S r (b :: o).

Lemma shorter_weaker (same same' : answer T -> answer T -> Prop) S r o :
  (forall a b, same a b -> same' a b) -> shorter same S r o -> shorter same' S r o.
Proof.
  intros W. induction 1; [constructor | constructor; auto | eapply S_drop; eauto | eapply S_again; eauto].
Qed.

Lemma shorter_none same r : shorter same [] r [] -> r = [].
Proof. intros H. inversion H; subst; auto; contradiction. Qed.

Lemma shorter_first same r b o : shorter same [] r (b :: o) ->
  exists a r', r = a :: r' /\ same a b /\ same_visits (snd a) (snd b).
Proof. intros H. inversion H; subst; try contradiction; eauto. Qed.

Section Shorter.
Variable n : nat.
Notation same := (same_known n).

Definition covers (S S' : list (answer T)) : Prop :=
  forall s, In s S -> exists s', In s' S' /\ same s' s.

Lemma shorter_alike S r o : shorter same S r o -> forall S' r', covers S S' ->
  Forall2 (fun a b => same a b /\ same_visits (snd a) (snd b)) r r' -> shorter same S' r' o.
Proof.
  induction 1 as [S | S a b r o E V _ IH | S a s r o I E _ IH | S b s r o I E _ IH]; intros S' r1 C F.
  - inversion F. constructor.
  - inversion F as [| ? a' ? r' [Ea Va] F']; subst. constructor.
    + apply same_known_trans with a; auto using same_known_sym.
    + intros t. rewrite <- (Va t). apply V.
    + apply IH; auto. intros s [<- | I]; [exists a'; simpl; auto using same_known_sym |].
      destruct (C s I) as (s' & I' & E'). exists s'. simpl. auto.
  - inversion F as [| ? a' ? r' [Ea Va] F']; subst.
    destruct (C s I) as (s' & I' & E'). apply S_drop with s'; auto.
    apply same_known_trans with s; auto. now apply same_known_trans with a.
  - destruct (C s I) as (s' & I' & E'). apply S_again with s'; auto.
    now apply same_known_trans with s.
Qed.

(** Others that repeat what is there may come in between. *)
Lemma shorter_others S x o (others again r o' : list (answer T)) :
  shorter same S x o -> (forall S, shorter same S r o') ->
  (forall c, In c others \/ In c again -> exists s, In s (S ++ x) /\ same s c) ->
  shorter same S (x ++ others ++ r) (o ++ again ++ o').
Proof.
  intros H Sr. induction H as [S | S a b x o E V _ IH | S a s x o I E _ IH | S b s x o I E _ IH];
    intros A; simpl.
  - rewrite app_nil_r in A. induction others as [| c others IHo]; simpl.
    + induction again as [| c again IHa]; simpl; auto.
      destruct (A c) as (s & I & E); [simpl; auto |]. apply S_again with s; auto.
      apply IHa. intros d [[] | Id]. apply A. simpl. auto.
    + destruct (A c) as (s & I & E); [simpl; auto |]. apply S_drop with s; auto.
      apply IHo. intros d [Id | Id]; apply A; simpl; auto.
  - constructor; auto. apply IH. intros c I. destruct (A c I) as (s & Is & Es). exists s.
    split; auto. simpl. apply in_app_or in Is as [Is | [-> | Is]]; auto; right; apply in_or_app; auto.
  - apply S_drop with s; auto. apply IH. intros c Ic. destruct (A c Ic) as (q & Iq & Eq).
    apply in_app_or in Iq as [Iq | [-> | Iq]].
    + exists q. split; auto. apply in_or_app. auto.
    + exists s. split; [apply in_or_app; auto |]. eapply same_known_trans; eauto.
    + exists q. split; auto. apply in_or_app. auto.
  - apply S_again with s; auto.
Qed.

Lemma shorter_inserted S q o : shorter same S q o -> forall x others r, q = x ++ r ->
  (forall c, In c others -> exists s, In s (S ++ x) /\ same s c) ->
  shorter same S (x ++ others ++ r) o.
Proof.
  assert (Drop : forall S others r o, shorter same S r o ->
    (forall c, In c others -> exists s, In s (S ++ []) /\ same s c) ->
    shorter same S (others ++ r) o).
  { intros S0 others r o0 H A. rewrite app_nil_r in A. induction others as [| c others IH]; auto.
    destruct (A c) as (s & I & E); [now left |]. simpl. apply S_drop with s; auto.
    apply IH. intros d I'. apply A. now right. }
  intros H. pose proof H as H0. revert H0.
  induction H as [S | S a b q o E V H IH | S a s q o I E H IH | S b s q o I E H IH];
    intros H0 [| a' x] others r Q A; simpl in Q; subst; try discriminate;
    try (exact (Drop _ _ _ _ H0 A)).
  - injection Q as -> ->. simpl. constructor; auto. apply IH; auto. intros c I.
    destruct (A c I) as (s & Is & Es). exists s. split; auto.
    apply in_app_or in Is as [Is | [-> | Is]]; simpl; auto; right; apply in_or_app; auto.
  - injection Q as -> ->. simpl. apply S_drop with s; auto. apply IH; auto. intros c Ic.
    destruct (A c Ic) as (d & Id & Ed). apply in_app_or in Id as [Id | [-> | Id]].
    + exists d. split; auto. apply in_or_app. auto.
    + exists s. split; [apply in_or_app; auto |]. now apply same_known_trans with d.
    + exists d. split; auto. apply in_or_app. auto.
  - apply S_again with s; auto.
Qed.

Lemma same_answers_less m r r' : n <= m ->
  Forall2 (fun a b => same_known m a b /\ same_visits (snd a) (snd b)) r r' ->
  Forall2 (fun a b => same a b /\ same_visits (snd a) (snd b)) r r'.
Proof.
  intros L. induction 1 as [| a b r r' [E V] _ IH]; constructor; auto. split; auto.
  eapply same_known_less; eauto.
Qed.

Lemma same_answers_refl r : Forall2 (fun a b => same a b /\ same_visits (snd a) (snd b)) r r.
Proof. induction r; constructor; auto. split; now intros x. Qed.
End Shorter.
End Repetitions.

Arguments shorter {Δ T} same.
Arguments same_known {Δ T} n.
Arguments same_bindings {Δ T}.
