(** * Tables of calls

    Calls that are alike lead to the same answers and the same visits.  So the machine may leave out
    calls that failed before, other ways to match a call that has nothing left to bind, and such a call
    once it is part of the match: what is lost are answers that repeat earlier ones. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine BigStep Ordered
  Tabling Visits.

Section Tables.
Context {Δ : Domain} {T : Type} {Σ : Structure T}.

(** ** Calls that are like an earlier one *)

(** A call that failed, as it is known later: what was matched, against what, and its names. *)
Record call : Type := Failed {
  f_store : store T;
  f_recursion : recursion;
  f_names : locs;
  f_pattern : pattern;
  f_subject : T
}.

Definition alone (f : call) : list (alternative T) :=
  [((f_store f, [AMatch (f_recursion f) (f_names f) (f_pattern f) (f_subject f)]), [])].

(** The same pattern at the same subject, with names that are alike. *)
Inductive like (f : call) : config T -> Prop :=
| Like σ ρ k : located σ ρ -> alike (f_store f) (f_names f) σ ρ ->
    like f (σ, AMatch (f_recursion f) ρ (f_pattern f) (f_subject f) :: k).

(** Its search has ended without an answer. *)
Definition failed (f : call) : Prop :=
  located (f_store f) (f_names f) /\ visiting (alone f) [].

Lemma like_searched f σ ρ o :
  located (f_store f) (f_names f) -> located σ ρ -> alike (f_store f) (f_names f) σ ρ ->
  visiting (alone f) o ->
  exists o', visiting [((σ, [AMatch (f_recursion f) ρ (f_pattern f) (f_subject f)]), [])] o' /\
    map snd o = map snd o'.
Proof.
  intros Lf L A H. destruct (alike_pairs _ _ _ _ Lf L A) as (M & G & P).
  destruct (visiting_alike M eq _ _ ltac:(now intros u v v' ->) H
    [((σ, [AMatch (f_recursion f) ρ (f_pattern f) (f_subject f)]), [])]) as (o' & H' & F).
  - constructor; [| constructor]. split; auto. apply alike_intro; auto.
    constructor; [now constructor | constructor].
  - exists o'. split; auto. clear - F. induction F as [| a a' o o' [_ E] _ IH]; simpl; congruence.
Qed.

Lemma like_fails f c v : failed f -> like f c -> visiting [(c, v)] [].
Proof.
  intros [Lf H] C. destruct C as [σ ρ k L A].
  destruct (like_searched f σ ρ [] Lf L A H) as (o' & H' & E).
  destruct o'; [| discriminate]. now apply (visiting_then k v _ _ H' []).
Qed.

(** ** Other answers of a call with nothing left to bind *)

Definition stands_in (σ : store T) (a : action T) : Prop :=
  match a with
  | AMatch _ ρ _ _ | AGuard ρ _ | ALet ρ _ _ | AMatchC _ ρ _ _ =>
      forall x l, ρ x = Some l -> allocated σ l
  | ACheck l => allocated σ l
  end.

Definition same_old (σ : store T) : loc -> loc -> Prop := fun l l' => l = l' /\ allocated σ l.

(** A store that differs from [σ] in what was allocated later alone. *)
Record beyond (σ τ : store T) : Prop := {
  beyond_old : forall l, allocated σ l -> get τ l = get σ l;
  beyond_next : next σ <= next τ;
  beyond_unused : unused τ
}.

Lemma beyond_agree σ τ τ' : beyond σ τ -> beyond σ τ' -> agree (same_old σ) τ τ'.
Proof.
  intros [G N U] [G' N' U']. unfold same_old. split; auto.
  - intros l l' [<- B]. now rewrite G, G'.
  - intros l l1 l2 _ [<- _] [<- _]. reflexivity.
  - intros l1 l2 l _ [-> _] [-> _]. reflexivity.
  - intros l l' [<- B]. split; eapply allocated_mono; try exact B; auto.
Qed.

Lemma actions_old σ k : Forall (stands_in σ) k -> Forall2 (action_alike (same_old σ)) k k.
Proof.
  assert (P : forall ρ, (forall x l, ρ x = Some l -> allocated σ l) -> paired (same_old σ) ρ ρ).
  { intros ρ B x. destruct (ρ x) eqn:E; auto. split; eauto. }
  induction 1 as [| a k S _ IH]; constructor; auto.
  destruct a; constructor; try (apply P; exact S). now split.
Qed.

(** What comes next does the same from each such store. *)
Lemma beyond_continues (V : list T -> list T -> Prop) σ τ τ' k v v' a :
  (forall u v v', V v v' -> V (u ++ v) (u ++ v')) -> V v v' ->
  beyond σ τ -> beyond σ τ' -> Forall (stands_in σ) k ->
  visiting [((τ, k), v)] a ->
  exists a', visiting [((τ', k), v')] a' /\
    Forall2 (fun b b' => (forall x, get (fst b) (LFree x) = get (fst b') (LFree x)) /\
                         V (snd b) (snd b')) a a'.
Proof.
  intros Va E B B' K H.
  destruct (visiting_alike (same_old σ) V _ _ Va H [((τ', k), v')]) as (a' & H' & F).
  - constructor; [| constructor]. split; auto.
    apply alike_intro; [now apply beyond_agree | now apply actions_old].
  - exists a'. split; auto. clear - F. induction F as [| b b' o o' [G W] _ IH]; constructor; auto.
    split; auto. intros x. apply (agree_get _ _ _ G). now split.
Qed.

Lemma closed_beyond R p t σ ρ o a :
  closed σ ρ -> located σ ρ -> visiting [((σ, [AMatch R ρ p t]), [])] o -> In a o ->
  beyond σ (fst a).
Proof.
  intros C L H I. apply visiting_answers, call_evaluates in H. simpl in H.
  apply (in_map fst) in I. split.
  - intros l B. eapply closed_unchanged; eauto.
  - apply (proj1 evaluates_follows _ _ _ _ _ _ H _ I).
  - apply (proj1 evaluates_follows _ _ _ _ _ _ H _ I); auto. apply L.
Qed.

(** ** Answers without repetitions *)

Definition same_bindings (a b : answer T) : Prop :=
  forall x, get (fst a) (LFree x) = get (fst b) (LFree x).

Definition same_visits (v v' : list T) : Prop := forall t, In t v <-> In t v'.

(** [shorter S r o]: but for answers that repeat the bindings of one before, or of [S], [o] is [r]. Those
    that are in both have the same bindings and visit the same operators. *)
Inductive shorter : list (answer T) -> list (answer T) -> list (answer T) -> Prop :=
| S_nil S : shorter S [] []
| S_keep S a b r o :
    same_bindings a b -> same_visits (snd a) (snd b) -> shorter (a :: S) r o ->
    shorter S (a :: r) (b :: o)
| S_drop S a s r o : In s S -> same_bindings s a -> shorter S r o -> shorter S (a :: r) o
| S_again S b s r o : In s S -> same_bindings s b -> shorter S r o -> shorter S r (b :: o).

Lemma shorter_none r : shorter [] r [] -> r = [].
Proof. intros H. inversion H; subst; auto; contradiction. Qed.

Definition covers (S S' : list (answer T)) : Prop :=
  forall s, In s S -> exists s', In s' S' /\ same_bindings s' s.

Lemma covers_cons S S' a b : same_bindings b a -> covers S S' -> covers (a :: S) (b :: S').
Proof.
  intros E C s [<- | I]; [exists b; simpl; auto |].
  destruct (C s I) as (s' & I' & E'). exists s'. simpl. auto.
Qed.

(** The repetitions may be longer, and the answers others of the same bindings and visits. *)
Lemma shorter_longer x y (again r o : list (answer T)) :
  Forall2 (fun a b => same_bindings a b /\ same_visits (snd a) (snd b)) x y ->
  (forall c, In c again -> exists a, In a x /\ same_bindings a c) ->
  forall S S', covers S S' -> shorter S (x ++ r) o -> shorter S' (y ++ again ++ r) o.
Proof.
  assert (Base : forall r o S, shorter S r o -> forall S', covers S S' -> shorter S' r o).
  { clear. induction 1 as [S | S a b r o E V _ IH | S a s r o I E _ IH | S b s r o I E _ IH]; intros S' C.
    - constructor.
    - constructor; auto. apply IH. apply covers_cons; auto. now intros x.
    - destruct (C s I) as (s' & I' & E'). apply S_drop with s'; auto.
      intros x. now rewrite E', E.
    - destruct (C s I) as (s' & I' & E'). apply S_again with s'; auto.
      intros x. now rewrite E', E. }
  intros F A.
  assert (G : forall S S', covers S S' ->
    (forall c, In c again -> exists s, In s (S ++ x) /\ same_bindings s c) ->
    shorter S (x ++ r) o -> shorter S' (y ++ again ++ r) o).
  2: { intros S S' C H. apply (G S S' C); auto. intros c I. destruct (A c I) as (a & Ia & E).
       exists a. split; auto. apply in_or_app. auto. }
  clear A. revert o. induction F as [| a b x y [E V] F IH]; intros o S S' C A H; simpl in *.
  - rewrite app_nil_r in A. assert (H' : shorter S' r o) by now apply Base with S.
    clear H. induction again as [| c again IH]; simpl; auto.
    destruct (A c) as (s & I & Es); [now left |]. destruct (C s I) as (s' & I' & Es').
    apply S_drop with s'; auto.
    + intros z. now rewrite Es', Es.
    + apply IH. intros d Id. apply A. now right.
  - remember (a :: x ++ r) as q eqn:Q. revert S' C A.
    induction H as [| S c d q' o' Ed Vd H' _ | S c s q' o I Es H' _ | S d s q' o I Es H' IHo];
      intros S' C A; try discriminate; try injection Q as -> ->.
    + constructor.
      * intros z. now rewrite <- E, Ed.
      * intros u. rewrite <- (V u). apply Vd.
      * apply (IH o' (a :: S) (b :: S')); auto.
        -- apply covers_cons; auto. intros z. now rewrite E.
        -- intros c Ic. destruct (A c Ic) as (s & Is & Es). exists s. split; auto. simpl.
           apply in_app_or in Is as [Is | [-> | Is]]; auto; right; apply in_or_app; auto.
    + destruct (C s I) as (s' & I' & Es'). apply S_drop with s'; auto.
      * intros z. now rewrite Es', Es, E.
      * apply (IH o S S'); auto. intros c Ic. destruct (A c Ic) as (q & Iq & Eq).
        apply in_app_or in Iq as [Iq | [-> | Iq]].
        -- exists q. split; auto. apply in_or_app. auto.
        -- exists s. split; [apply in_or_app; auto |]. intros z. now rewrite Es, Eq.
        -- exists q. split; auto. apply in_or_app. auto.
    + destruct (C s I) as (s' & I' & Es'). apply S_again with s'; auto.
      intros z. now rewrite Es', Es.
Qed.

(** Others that repeat what is there may come in between. *)
Lemma shorter_others S x o (others again r o' : list (answer T)) :
  shorter S x o -> (forall S, shorter S r o') ->
  (forall c, In c others \/ In c again -> exists s, In s (S ++ x) /\ same_bindings s c) ->
  shorter S (x ++ others ++ r) (o ++ again ++ o').
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
    + exists s. split; [apply in_or_app; auto |]. intros z. now rewrite E, Eq.
    + exists q. split; auto. apply in_or_app. auto.
  - apply S_again with s; auto.
Qed.

(** ** A search for some of the answers *)

(** It may leave out alternatives, and go past a call with nothing left to bind if a call that is like it
    has an answer. *)
Inductive deriving : list (alternative T) -> list (answer T) -> Prop :=
| D_failure : deriving [] []
| D_success σ v stk o : deriving stk o -> deriving (((σ, []), v) :: stk) ((σ, v) :: o)
| D_step σ a k v stk o :
    deriving (visit σ a k v ++ stk) o -> deriving (((σ, a :: k), v) :: stk) o
| D_skip c stk o : deriving stk o -> deriving (c :: stk) o
| D_done f σ ρ k v a o1 stk o :
    closed (f_store f) (f_names f) -> located (f_store f) (f_names f) ->
    located σ ρ -> alike (f_store f) (f_names f) σ ρ -> Forall (stands_in σ) k ->
    visiting (alone f) (a :: o1) ->
    deriving (((σ, k), v) :: stk) o ->
    deriving (((σ, AMatch (f_recursion f) ρ (f_pattern f) (f_subject f) :: k), v) :: stk) o.

Lemma alike_closed σ ρ σ' ρ' : closed σ ρ -> alike (T := T) σ ρ σ' ρ' -> closed σ' ρ'.
Proof.
  intros C [S V _] x l' E. specialize (V x). specialize (S x). unfold compose in V. rewrite E in V.
  destruct (ρ x) as [l |] eqn:Q.
  - rewrite <- V. now apply C with x.
  - destruct S as [S _]. now rewrite S in E.
Qed.

Lemma visiting_then_parts k v st o : visiting st o -> forall a, visiting (map (then_do k v) st) a ->
  exists rs, Forall2 (fun b r => visiting [((fst b, k), snd b ++ v)] r) o rs /\ a = concat rs.
Proof.
  induction 1 as [| σ w stk o _ IH | σ b j w stk o _ IH]; intros a H.
  - inversion H; subst. exists []. split; auto.
  - destruct (visiting_split _ _ H [((σ, k), w ++ v)] (map (then_do k v) stk) eq_refl)
      as (x & y & X & Y & ->).
    destruct (IH y Y) as (rs & F & ->). exists (x :: rs). split; auto.
  - apply IH. simpl in H. unfold then_do at 1 in H. simpl in H. inversion H; subst.
    now rewrite map_app, then_visit.
Qed.

Lemma deriving_repeats st o : deriving st o -> forall r, visiting st r ->
  forall c, In c o -> exists a, In a r /\ same_bindings a c.
Proof.
  induction 1 as [| σ v stk o _ IH | σ b k v stk o _ IH | b stk o _ IH
    | f σ ρ k v b o1 stk o C Lf L A K Hf _ IH]; intros r H c I.
  - destruct I.
  - inversion H as [| ? ? ? r' H' |]; subst. destruct I as [<- | I].
    + exists (σ, v). split; [now left | now intros x].
    + destruct (IH r' H' c I) as (a & Ia & E). exists a. split; [now right | auto].
  - inversion H; subst. eauto.
  - destruct (visiting_split _ _ H [b] stk eq_refl) as (x & y & _ & Y & ->).
    destruct (IH y Y c I) as (a & Ia & E). exists a. split; auto. apply in_or_app. auto.
  - destruct (visiting_split _ _ H [_] stk eq_refl) as (x & y & X & Y & ->).
    destruct (like_searched f σ ρ _ Lf L A Hf) as (o' & H' & E).
    destruct o' as [| b' o']; [discriminate |]. clear E.
    destruct (visiting_then_parts k v _ _ H' x X) as (rs & F & ->).
    inversion F as [| ? r' ? rs' V _]; subst. clear F.
    assert (B : beyond σ (fst b')).
    { eapply closed_beyond; eauto using alike_closed. now left. }
    assert (B0 : beyond σ σ) by (split; auto; apply L).
    destruct (beyond_continues (fun _ _ => True) σ (fst b') σ k (snd b' ++ v) v r')
      as (z & Hz & Fz); auto.
    destruct (IH (z ++ y) (visiting_app [_] _ Hz _ _ Y) c I) as (a & Ia & Ea).
    apply in_app_or in Ia as [Ia | Ia].
    + assert (Q : exists d, In d r' /\ same_bindings d a).
      { clear - Fz Ia. induction Fz as [| d e r z [G _] _ IHz]; [destruct Ia |].
        destruct Ia as [<- | Ia]; [exists d; simpl; auto |].
        destruct (IHz Ia) as (q & Iq & Eq). exists q. simpl. auto. }
      destruct Q as (d & Id & Ed). exists d. split.
      * simpl. apply in_or_app. left. apply in_or_app. auto.
      * intros u. now rewrite Ed, Ea.
    + exists a. split; auto. apply in_or_app. auto.
Qed.

(** ** The machine that tables calls *)

Inductive tabling : list call -> list (alternative T) -> list (answer T) -> Prop :=
| T_failure tb : tabling tb [] []
| T_success tb σ v stk o : tabling tb stk o -> tabling tb (((σ, []), v) :: stk) ((σ, v) :: o)
| T_step tb σ a k v stk o :
    tabling tb (visit σ a k v ++ stk) o -> tabling tb (((σ, a :: k), v) :: stk) o
(* a call whose search ended without an answer is written down *)
| T_record tb f stk o :
    located (f_store f) (f_names f) -> tabling tb (alone f) [] ->
    tabling (f :: tb) stk o -> tabling tb stk o
(* and one that is like it is not searched *)
| T_again tb f c v stk o :
    In f tb -> like f c -> tabling tb stk o -> tabling tb ((c, v) :: stk) o
(* where nothing came after an answer of a call with nothing left to bind, what is left of the search
   of the call is cut *)
| T_cut tb f σ k v τ w left o1 o2 stk o :
    σ = f_store f -> closed σ (f_names f) -> located σ (f_names f) -> Forall (stands_in σ) k ->
    visiting (alone f) (o1 ++ (τ, w) :: o2) -> visiting left o2 ->
    tabling tb [((τ, k), w ++ v)] [] ->
    tabling tb stk o -> tabling tb (map (then_do k v) left ++ stk) o
(* after what comes after the first answer of such a call, its other answers only repeat; of what
   comes after them some may be left out *)
| T_others tb f σ k v τ w left o1 x again stk o :
    σ = f_store f -> closed σ (f_names f) -> located σ (f_names f) -> Forall (stands_in σ) k ->
    visiting (alone f) ((τ, w) :: o1) -> visiting left o1 ->
    tabling tb [((τ, k), w ++ v)] x -> deriving (map (then_do k v) left) again ->
    tabling tb stk o ->
    tabling tb (((τ, k), w ++ v) :: map (then_do k v) left ++ stk) (x ++ again ++ o)
(* a call with nothing left to bind that is like one of which the first answer is part of this match is
   not searched again *)
| T_done tb f σ ρ k v τ w o1 stk o :
    closed (f_store f) (f_names f) -> located (f_store f) (f_names f) ->
    located σ ρ -> alike (f_store f) (f_names f) σ ρ -> Forall (stands_in σ) k ->
    visiting (alone f) ((τ, w) :: o1) -> incl w v ->
    tabling tb (((σ, k), v) :: stk) o ->
    tabling tb (((σ, AMatch (f_recursion f) ρ (f_pattern f) (f_subject f) :: k), v) :: stk) o.

Theorem tabling_shorter tb st o : tabling tb st o -> Forall failed tb ->
  exists r, visiting st r /\ forall S, shorter S r o.
Proof.
  induction 1 as [| tb σ v stk o _ IH | tb σ a k v stk o _ IH | tb f stk o Lf _ IHf _ IH
    | tb f c v stk o I C _ IH | tb f σ k v τ w left o1 o2 stk o Ef C Lf K Hf Hl _ IHk _ IH
    | tb f σ k v τ w left o1 x again stk o Ef C Lf K Hf Hl _ IHk D _ IH
    | tb f σ ρ k v τ w o1 stk o C Lf L A K Hf W _ IH]; intros Tb.
  - exists []. split; constructor.
  - destruct (IH Tb) as (r & H & S). exists ((σ, v) :: r). split; [now constructor |].
    intros S'. constructor; auto; [now intros x | now intros x].
  - destruct (IH Tb) as (r & H & S). exists r. split; [now constructor | auto].
  - apply IH. constructor; auto. split; auto.
    destruct (IHf Tb) as (r & H & S). now rewrite (shorter_none r (S [])) in H.
  - destruct (IH Tb) as (r & H & S). exists r. split; auto.
    apply (visiting_app [(c, v)] []); auto. rewrite Forall_forall in Tb. eapply like_fails; eauto.
  - destruct (IH Tb) as (r & H & S). exists r. split; auto.
    apply (visiting_app _ []); auto. apply visiting_then_none with o2; auto.
    intros a I. destruct (IHk Tb) as (r0 & H0 & S0). rewrite (shorter_none r0 (S0 [])) in H0.
    subst σ.
    assert (B : forall b, In b (o1 ++ (τ, w) :: o2) -> beyond (f_store f) (fst b)).
    { intros b Ib. eapply closed_beyond; eauto. }
    destruct (beyond_continues (fun _ _ => True) (f_store f) τ (fst a) k (w ++ v) (snd a ++ v) [])
      as (a' & H' & F); auto.
    + apply (B (τ, w)). apply in_or_app. simpl. auto.
    + apply B. apply in_or_app. simpl. auto.
    + now inversion F; subst.
  - destruct (IH Tb) as (r & H & S). destruct (IHk Tb) as (r1 & H1 & S1). subst σ.
    assert (B : forall b, In b ((τ, w) :: o1) -> beyond (f_store f) (fst b)).
    { intros b Ib. eapply closed_beyond; eauto. }
    assert (Rest : exists rs,
      Forall2 (fun a r => visiting [((fst a, k), snd a ++ v)] r) o1 rs /\
      forall c, In c (concat rs) -> exists a, In a r1 /\ same_bindings a c).
    { assert (Bτ : beyond (f_store f) τ) by (apply (B (τ, w)); now left).
      assert (B1 : forall b, In b o1 -> beyond (f_store f) (fst b)) by (intros; apply B; now right).
      clear - B1 Bτ H1 K.
      induction o1 as [| b o1 IHo]; [exists []; split; [constructor | intros c []] |].
      destruct IHo as (rs & Frs & Crs); [intros d Id; apply B1; now right |].
      destruct (beyond_continues (fun _ _ => True) (f_store f) τ (fst b) k (w ++ v) (snd b ++ v) r1)
        as (z & Hz & Fz); auto; [apply B1; now left |].
      exists (z :: rs). split; [now constructor |]. simpl. intros c I.
      apply in_app_or in I as [I | I]; auto. clear - Fz I.
      induction Fz as [| a d x z [G _] _ IHz]; [destruct I |].
      destruct I as [<- | I]; [exists a; simpl; auto |].
      destruct (IHz I) as (a' & Ia & Ea). exists a'. simpl. auto. }
    destruct Rest as (rs & Frs & Crs). pose proof (visiting_then k v _ _ Hl rs Frs) as Hrs.
    exists (r1 ++ concat rs ++ r). split.
    + apply (visiting_app [_]); auto. now apply visiting_app.
    + intros S'. apply shorter_others; auto. intros c [I | I].
      * destruct (Crs c I) as (a & Ia & Ea). exists a. split; auto. apply in_or_app. auto.
      * destruct (deriving_repeats _ _ D _ Hrs c I) as (d & Id & Ed).
        destruct (Crs d Id) as (a & Ia & Ea). exists a. split; [apply in_or_app; auto |].
        intros z. now rewrite Ea, Ed.
  - destruct (IH Tb) as (r & H & S).
    destruct (visiting_split _ _ H [((σ, k), v)] stk eq_refl) as (x & r' & Hx & Hr & ->).
    destruct (like_searched f σ ρ _ Lf L A Hf) as (o' & H' & E).
    destruct o' as [| [τ' w'] o']; [discriminate |]. injection E as <- E.
    pose proof (alike_closed _ _ _ _ C A) as C'.
    assert (B : forall b, In b ((τ', w) :: o') -> beyond σ (fst b)).
    { intros b Ib. eapply closed_beyond; eauto. }
    assert (B0 : beyond σ σ) by (split; auto; apply L).
    destruct (beyond_continues same_visits σ σ τ' k v (w ++ v) x) as (y & Hy & Fy); auto.
    { intros u a b V t. rewrite !in_app_iff. now rewrite (V t). }
    { intros t. rewrite in_app_iff. split; auto. intros [I | I]; auto. }
    { apply (B (τ', w)). now left. }
    assert (Rest : exists rs, Forall2 (fun a r => visiting [((fst a, k), snd a ++ v)] r) o' rs /\
      forall c, In c (concat rs) -> exists a, In a x /\ same_bindings a c).
    { clear H' E. induction o' as [| b o' IHo]; [exists []; split; [constructor | intros c []] |].
      destruct IHo as (rs & Frs & Crs); [intros d [<- | Id]; apply B; simpl; auto |].
      destruct (beyond_continues (fun _ _ => True) σ σ (fst b) k v (snd b ++ v) x)
        as (z & Hz & Fz); auto; [apply B; simpl; auto |].
      exists (z :: rs). split; [now constructor |]. simpl. intros c I.
      apply in_app_or in I as [I | I]; auto. clear - Fz I.
      induction Fz as [| a d x z [G _] _ IHz]; [destruct I |].
      destruct I as [<- | I]; [exists a; simpl; auto |].
      destruct (IHz I) as (a' & Ia & Ea). exists a'. simpl. auto. }
    destruct Rest as (rs & Frs & Crs).
    exists (y ++ concat rs ++ r'). split.
    + rewrite app_assoc. apply (visiting_app [_]); auto.
      apply (visiting_then k v _ _ H' (y :: rs)). now constructor.
    + intros S'. apply (shorter_longer x y (concat rs) r' o) with S'; auto.
      intros s Is. exists s. split; auto. now intros z.
Qed.

Corollary tabled_search p t o :
  tabling [] (search p t) o -> exists r, visiting (search p t) r /\ shorter [] r o.
Proof.
  intros H. destruct (tabling_shorter _ _ _ H) as (r & V & S); [constructor |]. eauto.
Qed.
End Tables.
